"""The options of `lattice logs` as typed, and the query they make together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lattice.base.errors import UsageError
from lattice.base.moment import parse_moment
from lattice.base.shell import Shell
from lattice.features.logs import operations
from lattice.features.logs.render.highlight import Highlight
from lattice.features.logs.render.template import Template

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


def _moment(shell: Shell, text: str | None) -> datetime | None:
    """The time that a text means; None for `start` and for no text."""
    if text is None or text == "start":
        return None
    try:
        return parse_moment(text, shell.clock.now(), shell.style.zone)
    except UsageError as error:
        raise UsageError(error.message, hint=_TIME_HINT) from None
