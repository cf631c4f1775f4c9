"""One stream as the store has it: its chunks, and which of them has the say for which bytes. Pure.

Chunks can overlap: a node that lost its disk reads a file again, and whoever holds its key can send
what he likes. What was stored first stays: a later chunk adds only bytes that nobody had. The order
is that of storing, by the store's own clock, not that of keys. A chunk that is the last of its
stream ends it: what was stored after it can fill what is missing before its end, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from lattice.domain.logchunk import ChunkIndex
from lattice.domain.logs import Gap, GapCause, Position, StreamName
from lattice.domain.objects import ObjectInfo

_UNKNOWN = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One object and what is in it."""

    key: str
    index: ChunkIndex
    stored: datetime = _UNKNOWN
    """When, by the clock of the store."""
    end: Position = field(init=False)
    """The place after its last byte, which an index has to add up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.index.end)


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Bytes for which a chunk has the say; none where begin and end are one."""

    begin: int
    end: int
    chunk: StoredChunk

    def holds(self, gap: Gap) -> bool:
        """True if the gap lies here, or at one of the ends."""
        return self.begin <= gap.at.offset <= self.end


class Resolved:
    """The ranges of a stream in order of text; `sealed` is where it ends, None if it goes on."""

    def __init__(self, chunks: Iterable[StoredChunk] = ()) -> None:
        self.ranges: list[StoredRange] = []
        self.sealed: int | None = None
        self._end = 0
        for chunk in sorted(chunks, key=in_order_of_storing):
            self._add(chunk)

    def overlaps(self, begin: int, end: int) -> bool:
        """True if one of these bytes is stored already."""
        return any(each.begin < end and begin < each.end for each in self.ranges)

    def _add(self, chunk: StoredChunk) -> None:
        """A chunk that was stored after all those before it."""
        begin, end = chunk.index.begin.offset, chunk.end.offset
        if self.sealed is not None:
            end = min(end, self.sealed)
            if begin >= end:
                return
        free = self._free(begin, end)
        if chunk.index.last and self.sealed is None and end >= self._end:
            self.sealed = end
            # One that ends the stream where it stands already adds that alone.
            free = free or [(end, end)]
        for each in free:
            insort(self.ranges, StoredRange(*each, chunk), key=_by_text)
        self._end = max(self._end, end)

    def _free(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts that nobody has."""
        if begin >= self._end:
            return [(begin, end)]
        if begin == end:
            inside = any(each.begin < begin < each.end for each in self.ranges)
            return [] if inside else [(begin, end)]
        free, at = [], begin
        for each in self.ranges:
            if each.end <= at or each.begin == each.end:
                continue
            if each.begin >= end:
                break
            if each.begin > at:
                free.append((at, each.begin))
            at = each.end
        if at < end:
            free.append((at, end))
        return free


def _by_text(each: StoredRange) -> tuple[int, int]:
    return each.begin, each.end


def in_order_of_storing(chunk: StoredChunk) -> tuple[datetime, int, str]:
    """Two that were stored at one moment of the store's clock go by their numbers."""
    return chunk.stored, len(chunk.key), chunk.key


def in_order(chunk: StoredChunk) -> tuple[Position, Position]:
    """The order of text."""
    return chunk.index.begin, chunk.end


class NotInOrder(Exception):
    """A folder is not one stream's, or changes just now."""


@dataclass(slots=True)
class StoredStream:
    """One stream, as far as the store has it."""

    name: StreamName
    chunks: list[StoredChunk] = field(default_factory=list)
    """In order. Of a stream with `objects`, those that were looked at: the first and the last, and
    what its range needs. Else those that have the say for something."""
    objects: tuple[ObjectInfo, ...] = ()
    """Every object of a stream whose order is known without looking; else empty."""
    resolved: Resolved = field(default_factory=Resolved)
    """Of a stream without `objects`."""
    _known: dict[str, StoredChunk] = field(default_factory=dict)
    _gaps: tuple[Gap, ...] | None = None

    @property
    def end(self) -> Position:
        if self.objects:
            return max((each.end for each in self.chunks), default=Position())
        whole = (
            each.chunk.end for each in self.resolved.ranges if each.end == each.chunk.end.offset
        )
        return max(whole, default=Position())

    @property
    def last(self) -> bool:
        """True if nothing will be added."""
        if self.objects:
            return any(each.index.last for each in self.chunks)
        return self.resolved.sealed is not None

    @property
    def newest(self) -> datetime:
        """When something of it was last stored, by the clock of the store."""
        stored = [each.stored for each in self.chunks] + [each.modified for each in self.objects]
        return max(stored, default=_UNKNOWN)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """In order; one that was told twice is there once."""
        if self._gaps is None:
            found: dict[tuple[Position, GapCause], Gap] = {}
            for gap in self._all_gaps():
                found[gap.at, gap.cause] = gap
            self._gaps = tuple(sorted(found.values(), key=lambda gap: gap.at))
        return self._gaps

    def _all_gaps(self) -> Iterable[Gap]:
        if self.objects:
            return [gap for each in self.chunks for gap in each.index.gaps]
        ranges = self.resolved.ranges
        return [gap for each in ranges for gap in each.chunk.index.gaps if each.holds(gap)]

    @property
    def path(self) -> str:
        return self.chunks[-1].index.path if self.chunks else ""

    @property
    def labelled(self) -> bool:
        return any(each.index.labelled for each in self.chunks)

    def known(self, key: str) -> StoredChunk | None:
        """One that was looked at."""
        return self._known.get(key)

    def know(self, chunk: StoredChunk) -> None:
        """One more was looked at. Raises `NotInOrder` if it lies where its number does not."""
        place = bisect_right(self.chunks, _counted(chunk), key=_counted)
        self.chunks.insert(place, chunk)
        for first, second in pairwise(self.chunks[max(0, place - 1) : place + 2]):
            counted = _before(first) < _before(second) and not first.index.last
            if not counted or first.end.offset > second.index.offset:
                raise NotInOrder
        self._known[chunk.key] = chunk
        self._gaps = None

    def know_all(self, chunks: Iterable[StoredChunk]) -> None:
        """Every one was looked at; these are its own."""
        self.objects = ()
        self.resolved = Resolved(chunks)
        kept = {each.chunk.key: each.chunk for each in self.resolved.ranges}
        self.chunks = sorted(kept.values(), key=in_order)
        self._gaps = None


def _counted(chunk: StoredChunk) -> tuple[Position, Position, int]:
    return *in_order(chunk), _before(chunk)


def _before(chunk: StoredChunk) -> int:
    return -1 if chunk.index.before is None else chunk.index.before
