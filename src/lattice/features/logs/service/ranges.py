"""Which chunk of a stream has the say for which bytes. Pure.

Chunks can overlap: a node that lost its disk reads a file again, and whoever holds its key can send
what he likes. What was stored first stays: a later chunk adds only bytes that nobody had. The order
is that of storing, by the store's own clock, not that of keys. A chunk that is the last of its
stream ends it: what was stored after it can fill what is missing before its end, and nothing else.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lattice.domain.logchunk import ChunkIndex
from lattice.domain.logs import Gap, Position

UNKNOWN = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One object and what is in it."""

    key: str
    index: ChunkIndex
    stored: datetime = UNKNOWN
    """When, by the clock of the store."""
    digest: str = ""
    """The SHA-256 of its index."""
    end: Position = field(init=False)
    """The place after its last byte, which an index has to add up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.index.end)


@dataclass(frozen=True, slots=True)
class Lost:
    """A chunk that was stored and can't be read: damaged, or not what was sealed."""

    begin: Position
    end: Position
    tampered: bool = False


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
