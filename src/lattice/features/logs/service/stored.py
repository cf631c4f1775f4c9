"""One stream in the store: its chunks, and its lost ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from lattice.domain.logs import Gap, GapCause, Position, StreamName
from lattice.domain.objects import ObjectInfo
from lattice.features.logs.service.checks import Checks
from lattice.features.logs.service.ranges import UNKNOWN, ChunkRange, LostRange, Resolved, in_order


class NotInOrder(Exception):
    """A folder has several streams, or changes now."""


@dataclass(slots=True)
class StoredStream:
    """One stream, as far as the store has it."""

    name: StreamName
    chunks: list[ChunkRange] = field(default_factory=list)
    """In order. With `objects`, the chunks read so far: the first, the last and the range.

    Without `objects`, the chunks that provide bytes.
    """
    objects: tuple[ObjectInfo, ...] = ()
    """Every object of a stream with a known order; else empty."""
    resolved: Resolved = field(default_factory=Resolved)
    """For a stream without `objects`."""
    lost: list[LostRange] = field(default_factory=list)
    is_sealed: bool = False
    """True if a server sealed it."""
    folder: str = ""
    checks: Checks = field(default_factory=Checks)
    _known: dict[str, ChunkRange] = field(default_factory=dict)
    _gaps: tuple[Gap, ...] | None = None

    @property
    def end(self) -> Position:
        lost = max((each.end for each in self.lost), default=Position())
        if self.objects:
            return max((lost, *(each.end for each in self.chunks)))
        whole = (
            each.chunk.end for each in self.resolved.ranges if each.end == each.chunk.end.offset
        )
        return max((lost, *whole))

    @property
    def last(self) -> bool:
        """True if nothing will be added."""
        if self.objects:
            return any(each.index.last for each in self.chunks)
        return self.is_sealed or self.resolved.sealed is not None

    @property
    def newest(self) -> datetime:
        """When something of it was last stored, by the store's clock."""
        stored = [each.stored for each in self.chunks] + [each.modified for each in self.objects]
        return max(stored, default=UNKNOWN)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """In order; a repeated one is there once."""
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

    def known(self, key: str) -> ChunkRange | None:
        """A chunk that was read before."""
        return self._known.get(key)

    def know(self, chunk: ChunkRange) -> None:
        """Add a chunk that was read. Raises `NotInOrder` if its position contradicts its number."""
        position = bisect_right(self.chunks, _counted(chunk), key=_counted)
        self.chunks.insert(position, chunk)
        for first, second in pairwise(self.chunks[max(0, position - 1) : position + 2]):
            counted = _before(first) < _before(second) and not first.index.last
            if not counted or first.end.offset > second.index.offset:
                raise NotInOrder
        self._known[chunk.key] = chunk
        self._gaps = None

    def know_all(self, chunks: Iterable[ChunkRange]) -> None:
        """Set all chunks of the stream; every index was read."""
        self.objects = ()
        self.resolved = Resolved(chunks)
        providing = {each.chunk.key: each.chunk for each in self.resolved.ranges}
        self.chunks = sorted(providing.values(), key=in_order)
        self._gaps = None

    def lose(self, chunk: ChunkRange, *, tampered: bool) -> None:
        """Mark a chunk as unreadable. All indexes must have been read."""
        self.know_all([each for each in self.chunks if each.key != chunk.key])
        self.lost.append(LostRange(chunk.index.begin, chunk.end, tampered))

    def lost_at(self, offset: int) -> LostRange | None:
        """The lost range at an offset, or None."""
        covering = (each for each in self.lost if each.begin.offset <= offset < each.end.offset)
        return next(covering, None)


def _counted(chunk: ChunkRange) -> tuple[Position, Position, int]:
    return *in_order(chunk), _before(chunk)


def _before(chunk: ChunkRange) -> int:
    return -1 if chunk.index.before is None else chunk.index.before
