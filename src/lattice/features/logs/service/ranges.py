"""Which chunk of a stream provides which bytes. Pure.

Chunks can overlap: a node that lost its disk reads a file again, and the holder of its key can send
anything. The first stored bytes stay: a later chunk adds only missing bytes. The order is the time
of storing by the store's clock, not the order of keys. The last chunk of a stream ends it: chunks
stored later only fill holes before its end.
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
class ChunkRange:
    """One object and its index."""

    key: str
    index: ChunkIndex
    stored: datetime = UNKNOWN
    """The time of storing, by the store's clock."""
    digest: str = ""
    """The SHA-256 of its index."""
    end: Position = field(init=False)
    """The position after its last byte; cached, because the index has to sum it up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.index.end)


@dataclass(frozen=True, slots=True)
class LostRange:
    """A stored chunk that can't be read: damaged, or different from its seal."""

    begin: Position
    end: Position
    tampered: bool = False


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Bytes that a chunk provides; empty if `begin` equals `end`."""

    begin: int
    end: int
    chunk: ChunkRange

    def holds(self, gap: Gap) -> bool:
        """True if the gap is within it, or at one of its ends."""
        return self.begin <= gap.at.offset <= self.end


class Resolved:
    """The ranges of a stream in order of text; `sealed` is its end, None if it continues."""

    def __init__(self, chunks: Iterable[ChunkRange] = ()) -> None:
        self.ranges: list[StoredRange] = []
        self.sealed: int | None = None
        self._end = 0
        for chunk in sorted(chunks, key=in_order_of_storing):
            self._add(chunk)

    def overlaps(self, begin: int, end: int) -> bool:
        """True if one of these bytes is stored already."""
        return any(each.begin < end and begin < each.end for each in self.ranges)

    def _add(self, chunk: ChunkRange) -> None:
        """Add a chunk that was stored after all those before it."""
        begin, end = chunk.index.begin.offset, chunk.end.offset
        if self.sealed is not None:
            end = min(end, self.sealed)
            if begin >= end:
                return
        free = self._free(begin, end)
        if chunk.index.last and self.sealed is None and end >= self._end:
            self.sealed = end
            # A last chunk without new bytes still marks the end.
            free = free or [(end, end)]
        for each in free:
            insort(self.ranges, StoredRange(*each, chunk), key=_by_text)
        self._end = max(self._end, end)

    def _free(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The parts that no chunk provides yet."""
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


def in_order_of_storing(chunk: ChunkRange) -> tuple[datetime, int, str]:
    """By time; chunks stored at the same time are in the order of their numbers."""
    return chunk.stored, len(chunk.key), chunk.key


def in_order(chunk: ChunkRange) -> tuple[Position, Position]:
    """The order of text."""
    return chunk.index.begin, chunk.end
