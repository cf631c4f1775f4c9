"""The options of `lattice logs`, and the query that they make together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lattice.base.command import Option
from lattice.base.errors import UsageError
from lattice.base.moment import parse_moment
from lattice.base.shell import Shell
from lattice.domain.nodeset import NodeSet
from lattice.features.logs import operations
from lattice.features.logs.model import LogStreamFacts
from lattice.features.logs.render.labels import PREFIXES
from lattice.features.logs.render.lines import Highlight, Template

_TIME_HINT = "Write a time as 14:02, 2026-11-15T14:02:00Z, 5m, 2h or start."


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """A field for each option, by its name."""

    id: str | None
    follow: bool
    stdout: bool
    stderr: bool
    node: tuple[tuple[str, ...], ...]
    rank: tuple[tuple[int, ...], ...]
    tail: int | None
    since: str | None
    until: str | None
    attempt: int | None
    previous: bool
    timestamps: bool
    grep: str | None
    exclude: str | None
    highlight: Highlight | None
    prefix: str | None
    template: Template | None
    first_error: bool
    raw: bool
    no_sample: bool
    no_pager: bool
    download: str | None
    exit_status: bool
    cursor: str | None

    @classmethod
    def read(cls, values: dict[str, Any]) -> LogOptions:
        """From the command line's values; `from` is a Python keyword, so it becomes `cursor`."""
        values["cursor"] = values.pop("from")
        return cls(**values)

    def choice(self, shell: Shell, reference: str) -> operations.LogChoice:
        """The lines to show. Raises `UsageError`."""
        since, until = _moment(shell, self.since), _moment(shell, self.until)
        if since is not None and until is not None and since >= until:
            raise UsageError("--since is not before --until", hint="Swap them, or leave one out.")
        return operations.LogChoice(
            attempt=self._attempt(shell, reference),
            stream="" if self.stdout == self.stderr else "stdout" if self.stdout else "stderr",
            nodes=tuple(dict.fromkeys(name for group in self.node for name in group)),
            ranks=tuple(dict.fromkeys(rank for group in self.rank for rank in group)),
            since=since,
            until=until,
            tail=self.tail,
            grep=self.grep or "",
            exclude=self.exclude or "",
        )

    def _attempt(self, shell: Shell, reference: str) -> int:
        if not self.previous:
            return self.attempt or 0
        if self.attempt is not None:
            raise UsageError("--previous and --attempt both name one", hint="Leave one out.")
        attempts = shell.call(operations.list_streams(reference)).attempts
        if attempts < 2:
            raise UsageError("There is no attempt before this one.", hint="Leave --previous out.")
        return attempts - 1


def is_chosen(each: LogStreamFacts, choice: operations.LogChoice) -> bool:
    """True if the choice has lines of this stream."""
    return (
        each.stream.value.startswith(choice["stream"])
        and (not choice["nodes"] or each.node in choice["nodes"])
        and (not choice["ranks"] or each.rank in choice["ranks"])
    )


def _moment(shell: Shell, text: str | None) -> datetime | None:
    """The time that a text means; None for `start` and for no text."""
    if text is None or text == "start":
        return None
    try:
        return parse_moment(text, shell.clock.now(), shell.style.zone)
    except UsageError as error:
        raise UsageError(error.message, hint=_TIME_HINT) from None


_MOST = 4096


def read_count(text: str) -> int:
    """Parse a number of lines; raises `UsageError`."""
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise UsageError(f"{text!r} is no number of lines", hint="Write 0, 100 or 5000.")
    return int(text)


def read_attempt(text: str) -> int:
    """Parse the number of an attempt, from 1; raises `UsageError`."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= 100_000:
        raise UsageError(f"{text!r} is no attempt", hint="Attempts are numbered from 1.")
    return int(text)


def read_ranks(text: str) -> tuple[int, ...]:
    """Parse `3`, `0-7` or `0,8-15`; raises `UsageError`."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        high = high if dash else low
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit()):
            raise UsageError(f"{text!r} is no rank", hint="Write 3, 0-7 or 0,8-15.")
        first, last = int(low[:9]), int(high[:9])
        if last < first or last - first + len(found) >= _MOST:
            raise UsageError(f"{text!r} is no range of ranks", hint="Write 3, 0-7 or 0,8-15.")
        found.extend(range(first, last + 1))
    return tuple(found)


def read_nodes(text: str) -> tuple[str, ...]:
    """Parse `n1` or `n[1-3]`; raises `UsageError`."""
    try:
        return tuple(NodeSet.parse(text, limit=_MOST))
    except ValueError as problem:
        raise UsageError(f"{text!r}: {problem}", hint="Write n1 or n[1-3].") from None


OPTIONS = (
    Option("-f", "--follow", help="Go on showing what comes, until the job ends."),
    Option("-n", "--tail", metavar="N", read=read_count, help="Only the last N lines; 0: new."),
    Option("-S", "--since", metavar="TIME", help="From this time on."),
    Option("-E", "--until", metavar="TIME", help="Up to this time."),
    Option("--stdout", help="Only standard output."),
    Option("--stderr", help="Only standard error, where Slurm keeps it apart."),
    Option(
        "--node",
        metavar="NODE",
        read=read_nodes,
        repeat=True,
        help="Only from these, named as Slurm does.",
        complete="nodes",
    ),
    Option(
        "--rank",
        metavar="RANK",
        read=read_ranks,
        repeat=True,
        help="Only from these, where the writer of a line is known.",
    ),
    Option(
        "--attempt",
        metavar="N",
        read=read_attempt,
        help="Of this attempt; the newest unless named.",
    ),
    Option("-p", "--previous", help="Of the attempt before the newest."),
    Option("-g", "--grep", metavar="RE", dashed=True, help="Only lines that match."),
    Option("-x", "--exclude", metavar="RE", dashed=True, help="No lines that match."),
    Option(
        "-H",
        "--highlight",
        metavar="RE",
        read=Highlight.read,
        dashed=True,
        help="Mark what matches.",
    ),
    Option("-t", "--timestamps", help="With the time of each line; ~ is older than that."),
    Option("--prefix", choices=PREFIXES, help="Who wrote a line; told where there are several."),
    Option(
        "--template",
        metavar="TEXT",
        read=Template.read,
        help="A line as you want it: {time} {node} {rank} {stream} {source} {seq} {text}.",
    ),
    Option(
        "--first-error",
        help="The first line of all that looks like an error, and what is around it.",
    ),
    Option("--raw", help="As it was written: escapes act on your terminal."),
    Option("--no-sample", help="Every line on a terminal, even of a flood."),
    Option("--no-pager", help="No pager for what is longer than the screen."),
    Option("--download", metavar="DIR", help="The whole logs into files there."),
    Option("--exit-status", help="Tell by the exit code how the job ended."),
    Option("--from", metavar="CURSOR", help="Go on where an earlier run broke off."),
    Option(
        "-o",
        "--output",
        choices=("table", "wide", "json", "ndjson"),
        help="json and ndjson: an object for each line, gap and note.",
    ),
)
"""In the order of the help text."""
