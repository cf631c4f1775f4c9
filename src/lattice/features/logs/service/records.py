"""From lines and gaps to what callers read: filtered, decoded, with their words. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import re2  # type: ignore[import-untyped]

from lattice.base.errors import UsageError
from lattice.domain.logs import Gap, Position, StreamName
from lattice.features.logs.model import LogBlock, LogGap, LogQuery
from lattice.features.logs.service.lines import Lines

_LONGEST_PATTERN = 500
_PATTERN_BYTES = 8 * 1024 * 1024


class LineFilter:
    """What of a query is about single lines."""

    def __init__(self, query: LogQuery) -> None:
        """Raises `UsageError` for patterns that are none."""
        self._grep = _pattern(query.grep)
        self._exclude = _pattern(query.exclude)
        self._until_ms = _ms(query.until)

    def is_past(self, time_ms: int) -> bool:
        """True if this and all that comes after it is later than asked for."""
        return self._until_ms is not None and time_ms > self._until_ms

    def kept(self, lines: Lines) -> Iterator[Lines]:
        """The lines that match, in runs of neighbours."""
        if self._grep is None and self._exclude is None:
            yield lines
            return
        run: list[bytes] = []
        at = begin = lines.at
        for line in _lines(lines.text):
            end = Position(at.offset + len(line), at.line + 1)
            if self._matches(line):
                begin = begin if run else at
                run.append(line)
            elif run:
                yield _run(lines, begin, run)
                run = []
            at = end
        if run:
            yield _run(lines, begin, run)

    def _matches(self, line: bytes) -> bool:
        text = line.rstrip(b"\n")
        if self._grep is not None and not self._grep.search(text):
            return False
        return self._exclude is None or not self._exclude.search(text)


def _lines(text: bytes) -> list[bytes]:
    """At line feeds alone: a carriage return ends no line."""
    parts = text.split(b"\n")
    return [each + b"\n" for each in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _run(lines: Lines, begin: Position, run: list[bytes]) -> Lines:
    text = b"".join(run)
    end = Position(begin.offset + len(text), begin.line + len(run))
    return replace(lines, at=begin, end=end, text=text, count=len(run))


def block(name: StreamName, lines: Lines) -> LogBlock:
    """As callers read it."""
    return LogBlock(
        node=name.node,
        stream=name.kind,
        source=str(name.source),
        rank=name.source.task,
        seq=lines.at.line,
        count=lines.count,
        offset=lines.at.offset,
        time=moment(lines.time_ms),
        late=lines.late,
        text=lines.text.decode("utf-8", "backslashreplace"),
        cut=lines.cut,
        unfinished=lines.unfinished,
    )


def without_first(shown: LogBlock, count: int) -> LogBlock:
    """The same block without its first lines."""
    begin = 0
    for _ in range(count):
        begin = shown.text.index("\n", begin) + 1
    return replace(
        shown,
        seq=shown.seq + count,
        count=shown.count - count,
        offset=shown.offset + len(shown.text[:begin].encode()),
        text=shown.text[begin:],
    )


def gap(name: StreamName, found: Gap) -> LogGap:
    """As callers read it."""
    return LogGap(
        node=name.node,
        stream=name.kind,
        source=str(name.source),
        seq=found.at.line,
        offset=found.at.offset,
        time=moment(found.time_ms),
        cause=found.cause,
        lost_bytes=found.lost_bytes,
    )


def _pattern(text: str) -> Any:
    if not text:
        return None
    if len(text) > _LONGEST_PATTERN:
        raise UsageError(f"A pattern has at most {_LONGEST_PATTERN} characters.")
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    # Whether it matches is all that is asked: a thousand times less work for some patterns.
    options.never_capture = True
    try:
        return re2.compile(text.encode(), options)
    except re2.error as problem:
        said = problem.args[0] if problem.args else ""
        words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise UsageError(
            f"The pattern can't be used: {words}.",
            hint="RE2 patterns, without look-around and back-references.",
        ) from None


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def moment(time_ms: int) -> datetime:
    """From the milliseconds that chunks carry."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)
