"""One stream as the store has it: its chunks, and what of it is lost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from lattice.domain.logs import Gap, GapCause, Position, StreamName
from lattice.domain.objects import ObjectInfo
from lattice.features.logs.service.checks import Checks
from lattice.features.logs.service.ranges import UNKNOWN, Lost, Resolved, StoredChunk, in_order


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
    lost: list[Lost] = field(default_factory=list)
    is_sealed: bool = False
    """True if a server signed what there is of it."""
    folder: str = ""
    checks: Checks = field(default_factory=Checks)
    _known: dict[str, StoredChunk] = field(default_factory=dict)
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
        """When something of it was last stored, by the clock of the store."""
        stored = [each.stored for each in self.chunks] + [each.modified for each in self.objects]
        return max(stored, default=UNKNOWN)

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
        position = bisect_right(self.chunks, _counted(chunk), key=_counted)
        self.chunks.insert(position, chunk)
        for first, second in pairwise(self.chunks[max(0, position - 1) : position + 2]):
            counted = _before(first) < _before(second) and not first.index.last
            if not counted or first.end.offset > second.index.offset:
                raise NotInOrder
        self._known[chunk.key] = chunk
        self._gaps = None

    def know_all(self, chunks: Iterable[StoredChunk]) -> None:
        """Every one was looked at; these are its own."""
        self.objects = ()
        self.resolved = Resolved(chunks)
        having_a_say = {each.chunk.key: each.chunk for each in self.resolved.ranges}
        self.chunks = sorted(having_a_say.values(), key=in_order)
        self._gaps = None

    def lose(self, chunk: StoredChunk, *, tampered: bool) -> None:
        """One of its chunks turns out to be no such chunk. All must have been looked at."""
        self.know_all([each for each in self.chunks if each.key != chunk.key])
        self.lost.append(Lost(chunk.index.begin, chunk.end, tampered))

    def lost_at(self, offset: int) -> Lost | None:
        """What is lost at a place, if something is."""
        covering = (each for each in self.lost if each.begin.offset <= offset < each.end.offset)
        return next(covering, None)


def _counted(chunk: StoredChunk) -> tuple[Position, Position, int]:
    return *in_order(chunk), _before(chunk)


def _before(chunk: StoredChunk) -> int:
    return -1 if chunk.index.before is None else chunk.index.before
