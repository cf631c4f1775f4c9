"""The options of `lattice logs`."""

from __future__ import annotations

from lattice.base.command import Option
from lattice.base.errors import UsageError
from lattice.domain.nodeset import NodeSet
from lattice.features.logs.render.highlight import Highlight
from lattice.features.logs.render.labels import PREFIXES
from lattice.features.logs.render.template import Template

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


FOLLOW = Option("-f", "--follow", help="Go on showing what comes, until the job ends.")
STDOUT = Option("--stdout", help="Only standard output.")
STDERR = Option("--stderr", help="Only standard error, where Slurm keeps it apart.")
NODE = Option(
    "--node",
    metavar="NODE",
    read=read_nodes,
    repeat=True,
    help="Only from these, named as Slurm does.",
    complete="nodes",
)
RANK = Option(
    "--rank",
    metavar="RANK",
    read=read_ranks,
    repeat=True,
    help="Only from these, where the writer of a line is known.",
)
TAIL = Option("-n", "--tail", metavar="N", read=read_count, help="Only the last N lines; 0: new.")
SINCE = Option("-S", "--since", metavar="TIME", help="From this time on.")
UNTIL = Option("-E", "--until", metavar="TIME", help="Up to this time.")
ATTEMPT = Option(
    "--attempt", metavar="N", read=read_attempt, help="Of this attempt; the newest unless named."
)
PREVIOUS = Option("-p", "--previous", help="Of the attempt before the newest.")
TIMESTAMPS = Option("-t", "--timestamps", help="With the time of each line; ~ is older than that.")
GREP = Option("-g", "--grep", metavar="RE", dashed=True, help="Only lines that match.")
EXCLUDE = Option("-x", "--exclude", metavar="RE", dashed=True, help="No lines that match.")
HIGHLIGHT = Option(
    "-H", "--highlight", metavar="RE", read=Highlight.read, dashed=True, help="Mark what matches."
)
PREFIX = Option(
    "--prefix", choices=PREFIXES, help="Who wrote a line; told where there are several."
)
TEMPLATE = Option(
    "--template",
    metavar="TEXT",
    read=Template.read,
    help="A line as you want it: {time} {node} {rank} {stream} {source} {seq} {text}.",
)
FIRST_ERROR = Option(
    "--first-error", help="The first line of all that looks like an error, and what is around it."
)
RAW = Option("--raw", help="As it was written: escapes act on your terminal.")
NO_SAMPLE = Option("--no-sample", help="Every line on a terminal, even of a flood.")
NO_PAGER = Option("--no-pager", help="No pager for what is longer than the screen.")
DOWNLOAD = Option("--download", metavar="DIR", help="The whole logs into files there.")
EXIT_STATUS = Option("--exit-status", help="Tell by the exit code how the job ended.")
FROM = Option("--from", metavar="CURSOR", help="Go on where an earlier run broke off.")
OUTPUT = Option(
    "-o",
    "--output",
    choices=("table", "wide", "json", "ndjson"),
    help="json and ndjson: an object for each line, gap and note.",
)
