"""From lines and gaps to the records that callers read: filtered and decoded. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lattice.domain.logchunk import unpack_marks
from lattice.domain.logs import LONGEST_LINE_BYTES, Gap, Position, StreamName
from lattice.features.logs.blocks import LinesFrame, PackedLines
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogBlock, LogGap, LogQuery
from lattice.features.logs.service.frames import FrameForm, PassedFrame
from lattice.features.logs.service.search import LineQuestion, LineSearch, LineSpan
from lattice.features.logs.service.search_process import SearchProcesses

SLICE_BYTES = 64 * 1024
"""Searched in one step. The worst pattern takes a second for that much."""
_SMALL_BYTES = 8 * 1024
"""Searched here: a live line must not wait for a worker."""


class LineFilter:
    """The part of a query that concerns single lines."""

    def __init__(self, query: LogQuery, search: SearchProcesses | None = None) -> None:
        """Raises `UsageError` for invalid patterns. `search` gets the large texts."""
        self._question = LineQuestion(query.grep, query.exclude, query.ranks)
        self._here = LineSearch(self._question)
        self._search = search
        self._until_ms = int(query.until.timestamp() * 1000) if query.until else None

    @property
    def has_patterns(self) -> bool:
        """True if the text itself decides."""
        return bool(self._question.grep or self._question.exclude)

    def is_past(self, time_ms: int) -> bool:
        """True if this and everything after it is later than `until`."""
        return self._until_ms is not None and time_ms > self._until_ms

    def matching_by_rank(
        self, lines: Lines, *, torn: bool = False
    ) -> Iterator[tuple[int | None, Lines]]:
        """The matching labelled lines, in runs of neighbours of one rank.

        `torn`: the beginning of the first line is missing, so it has no label.
        """
        for found in self.steps(lines, labelled=True, torn=torn):
            if found is not None:
                yield found

    def steps(
        self, lines: Lines, *, labelled: bool = False, torn: bool = False
    ) -> Iterator[tuple[int | None, Lines] | None]:
        """The runs, with None where the caller may do something else."""
        if not labelled and not self.has_patterns:
            yield None, lines
            return
        run = _Run(lines)
        for begin, end in _slices(lines.text):
            found = self._spans(lines, begin, end, labelled=labelled, torn=torn and begin == 0)
            for rank, first, last in found:
                if (finished := run.take(rank, begin + first, begin + last)) is not None:
                    yield finished
            yield None
        if (finished := run.finish()) is not None:
            yield finished

    def _spans(
        self, lines: Lines, begin: int, end: int, *, labelled: bool, torn: bool
    ) -> list[LineSpan]:
        text = lines.text[begin:end]
        if self._search is None or len(lines.text) <= _SMALL_BYTES:
            return self._here.spans(text, labelled=labelled, torn=torn)
        return self._search.spans(self._question, text, labelled=labelled, torn=torn)


class _Run:
    """Neighbouring lines of one rank in a block."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._at = lines.at
        """The position of `_begin` in the stream."""
        self._begin = self._end = 0
        self._rank: int | None = None

    def take(self, rank: int | None, begin: int, end: int) -> tuple[int | None, Lines] | None:
        """Add lines; returns the run before them if they don't join it."""
        if self._end > self._begin and self._end == begin and self._rank == rank:
            self._end = end
            return None
        finished = self.finish()
        self._at = self._past(begin)
        self._begin, self._end, self._rank = begin, end, rank
        return finished

    def finish(self) -> tuple[int | None, Lines] | None:
        """The run, if there is one."""
        lines, begin, end = self._lines, self._begin, self._end
        if begin == end:
            return None
        if end - begin == len(lines.text):
            return self._rank, lines
        text = lines.text[begin:end]
        count = text.count(b"\n") + (not text.endswith(b"\n"))
        last = Position(self._at.offset + len(text), self._at.line + count)
        cut = min(lines.cut, sum(map(_may_be_cut, _lines(text)))) if lines.cut else 0
        run = replace(lines, at=self._at, end=last, text=text, count=count, cut=cut, marks=())
        return self._rank, run

    def _past(self, begin: int) -> Position:
        feeds = self._lines.text.count(b"\n", self._begin, begin)
        return Position(self._at.offset + begin - self._begin, self._at.line + feeds)


def _slices(text: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of whole lines to search in one step."""
    begin = 0
    while begin < len(text):
        end = len(text)
        if end - begin > SLICE_BYTES:
            end = text.rfind(b"\n", begin, begin + SLICE_BYTES) + 1
            # A longer line is a slice of its own.
            end = end or text.find(b"\n", begin) + 1 or len(text)
        yield begin, end
        begin = end


def _lines(text: bytes) -> list[bytes]:
    """Split at line feeds alone: a carriage return ends no line."""
    parts = text.split(b"\n")
    return [each + b"\n" for each in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _may_be_cut(line: bytes) -> bool:
    return len(line) > LONGEST_LINE_BYTES or line.startswith(b"\r")


def lines_frame(name: StreamName, lines: Lines, rank: int | None = None) -> LinesFrame:
    """The lines with their bytes, for clients that decode them."""
    rank = name.source.task if rank is None else rank
    return LinesFrame.of(name.node, name.kind, str(name.source), rank, lines)


def packed_lines(name: StreamName, passed: PassedFrame) -> PackedLines:
    """A stored frame, for clients that expand it."""
    placed, frame = passed.frame.placed, passed.frame.placed.frame
    return PackedLines(
        node=name.node,
        stream=name.kind,
        source=str(name.source),
        rank=name.source.task,
        seq=placed.begin.line,
        count=frame.lines,
        offset=placed.begin.offset,
        late=frame.late,
        marks=tuple(unpack_marks(frame.marks)),
        begun=passed.begun,
        plain_bytes=frame.plain_bytes,
        stored=passed.frame.stored,
    )


def block(name: StreamName, lines: Lines, rank: int | None = None) -> LogBlock:
    """The lines as a record. `rank` comes from the lines' labels."""
    return lines_frame(name, lines, rank).record()


def gap(name: StreamName, found: Gap) -> LogGap:
    """The gap as a record."""
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


def moment(time_ms: int) -> datetime:
    """The milliseconds of a chunk as a UTC datetime."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


class RecordForm(NamedTuple):
    """How lines become records, and how stored frames become lines."""

    lines: Callable[..., Any]
    """Makes a record of a stream's name, lines, and a rank."""
    frames: FrameForm
    frame: Callable[..., Any] = packed_lines
    """Makes a record of a stream's name and a packed frame."""
    is_grouped: bool = False
    """True if the writer also takes groups of records."""


DECODED = RecordForm(block, FrameForm.READS)
"""Blocks of decoded text, each with its time."""
BLOCKS = RecordForm(lines_frame, FrameForm.WHOLE, is_grouped=True)
"""Blocks of bytes."""
PACKED_BLOCKS = RecordForm(lines_frame, FrameForm.PACKED, is_grouped=True)
"""Blocks of bytes, and stored frames for clients that expand them."""
