"""Which lines of a job's file are shown. Pure.

A file has no times of its lines. So a time range is answered only where the file's own time decides
it: all of the file lies inside, or none. Patterns are Python's, and run for the caller alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from lattice.base.errors import UsageError
from lattice.domain.loglabels import rank_of
from lattice.domain.logs import Position
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogQuery

_NO_TIMES = "A file does not tell when its lines were written, so {} needs a server."
_NO_TIMES_HINT = "Choose by number instead: --tail 100."


class LineChoice:
    """The conditions of a query on single lines. Raises `UsageError` for a bad pattern."""

    def __init__(self, query: LogQuery) -> None:
        self._grep = _pattern(query.grep)
        self._exclude = _pattern(query.exclude)
        self._ranks = frozenset(query.ranks)

    @property
    def has_conditions(self) -> bool:
        """False if every line is shown."""
        return bool(self._grep or self._exclude or self._ranks)

    def chosen(self, lines: Lines, *, labelled: bool) -> Iterator[tuple[int | None, Lines]]:
        """The lines that are shown, in runs of neighbours of one rank, each with the rank."""
        if not labelled and not self.has_conditions:
            yield None, lines
            return
        at = run_at = lines.at
        run: list[bytes] = []
        run_rank: int | None = None
        for line in _split(lines.text):
            rank = rank_of(line) if labelled else None
            is_chosen = self._is_chosen(line, rank)
            if run and (not is_chosen or rank != run_rank):
                yield run_rank, _part(lines, run_at, run)
                run = []
            if is_chosen:
                if not run:
                    run_at, run_rank = at, rank
                run.append(line)
            at = at.past(line)
        if run:
            yield run_rank, _part(lines, run_at, run)

    def _is_chosen(self, line: bytes, rank: int | None) -> bool:
        text = line.removesuffix(b"\n")
        return not (
            (self._ranks and rank not in self._ranks)
            or (self._grep is not None and self._grep.search(text) is None)
            or (self._exclude is not None and self._exclude.search(text) is not None)
        )


def shows_past(query: LogQuery, started: datetime | None, written: datetime) -> bool:
    """Whether lines that were in the file before are shown; `written` is the file's time.

    Raises `UsageError` if that can't be told without the times of lines.
    """
    since, until = query.since, query.until
    if (since is not None and written < since) or (
        until is not None and started is not None and until <= started
    ):
        return False
    if since is not None and (started is None or since > started):
        raise UsageError(_NO_TIMES.format("--since"), hint=_NO_TIMES_HINT)
    if until is not None and until < written:
        raise UsageError(_NO_TIMES.format("--until"), hint=_NO_TIMES_HINT)
    return True


def is_labelled(beginning: bytes) -> bool:
    """Whether every whole line of a file's beginning has a label of `srun --label`."""
    lines = _split(beginning[: beginning.rfind(b"\n") + 1])
    return bool(lines) and all(rank_of(each) is not None for each in lines)


def _pattern(text: str) -> re.Pattern[bytes] | None:
    if not text:
        return None
    try:
        return re.compile(text.encode())
    except re.error as problem:
        raise UsageError(
            f"{text!r} is no regular expression: {problem}", hint="Put a \\ before . * + ? ( [ {."
        ) from None


def _split(text: bytes) -> list[bytes]:
    """Split at line feeds alone: a carriage return ends no line."""
    parts = text.split(b"\n")
    return [each + b"\n" for each in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _part(lines: Lines, at: Position, run: list[bytes]) -> Lines:
    text = b"".join(run)
    return replace(
        lines, at=at, end=at.past(text), text=text, count=text.count(b"\n"), cut=0, marks=()
    )
