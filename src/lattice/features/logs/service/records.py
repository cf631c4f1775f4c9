"""From lines and gaps to what callers read: filtered, decoded, with their words. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import re2  # type: ignore[import-untyped]

from lattice.base.errors import UsageError
from lattice.domain.loglabels import rank_of
from lattice.domain.logs import LONGEST_LINE_BYTES, Gap, Position, StreamName
from lattice.features.logs.model import LogBlock, LogGap, LogQuery, LogRecord
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
        self._ranks = frozenset(query.ranks)

    def is_past(self, time_ms: int) -> bool:
        """True if this and all that comes after it is later than asked for."""
        return self._until_ms is not None and time_ms > self._until_ms

    def kept(self, lines: Lines) -> Iterator[Lines]:
        """The lines that match, in runs of neighbours."""
        if self._grep is None and self._exclude is None:
            yield lines
            return
        for _, run in self._runs(lines, lambda _line, _at: None):
            yield run

    def kept_by_rank(
        self, lines: Lines, *, torn: bool = False
    ) -> Iterator[tuple[int | None, Lines]]:
        """The same of labelled lines, in runs of neighbours of one rank.

        `torn`: the beginning of the first line is missing, so what stands there is no label.
        """

        def rank_at(line: bytes, at: Position) -> int | None:
            return None if torn and at == lines.at else rank_of(line)

        for rank, run in self._runs(lines, rank_at):
            if not self._ranks or rank in self._ranks:
                yield rank, run

    def _runs(
        self, lines: Lines, rank_at: Callable[[bytes, Position], int | None]
    ) -> Iterator[tuple[int | None, Lines]]:
        run: list[bytes] = []
        rank: int | None = None
        at = begin = lines.at
        for line in _lines(lines.text):
            writer = rank_at(line, at)
            is_kept = self._matches(line)
            if run and (writer != rank or not is_kept):
                yield rank, _run(lines, begin, run)
                run = []
            if is_kept:
                begin = begin if run else at
                rank = writer
                run.append(line)
            at = Position(at.offset + len(line), at.line + 1)
        if run:
            yield rank, _run(lines, begin, run)

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
    if len(text) == len(lines.text):
        return lines
    end = Position(begin.offset + len(text), begin.line + len(run))
    cut = min(lines.cut, sum(map(_may_be_cut, run))) if lines.cut else 0
    return replace(lines, at=begin, end=end, text=text, count=len(run), cut=cut)


def _may_be_cut(line: bytes) -> bool:
    return len(line) > LONGEST_LINE_BYTES or line.startswith(b"\r")


def block(name: StreamName, lines: Lines, rank: int | None = None) -> LogBlock:
    """As callers read it. `rank` is what the lines' labels say."""
    return LogBlock(
        node=name.node,
        stream=name.kind,
        source=str(name.source),
        rank=name.source.task if rank is None else rank,
        seq=lines.at.line,
        count=lines.count,
        offset=lines.at.offset,
        time=moment(lines.time_ms),
        late=lines.late,
        text=lines.text.decode("utf-8", "backslashreplace"),
        cut=lines.cut,
        unfinished=lines.unfinished,
    )


class LastLines:
    """Of records that come, the last so many lines; of what is missing, everything."""

    def __init__(self, count: int) -> None:
        self._gaps: list[LogRecord] = []
        self._kept: deque[LogRecord] = deque()
        self._surplus = -count

    def add(self, record: LogRecord) -> None:
        """One more; what can't be among the last is let go of."""
        self._kept.append(record)
        self._surplus += record.count if record.type == "lines" else 0
        while self._surplus > 0:
            first = self._kept[0]
            if first.type != "lines":
                self._gaps.append(self._kept.popleft())
            elif first.count <= self._surplus:
                self._surplus -= first.count
                self._kept.popleft()
            else:
                break

    def records(self) -> Iterator[LogRecord]:
        """In the order they came."""
        yield from self._gaps
        for record in self._kept:
            if record.type == "lines" and self._surplus > 0:
                yield _without_first(record, self._surplus)
                self._surplus = 0
            else:
                yield record


def _without_first(shown: LogBlock, count: int) -> LogBlock:
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
