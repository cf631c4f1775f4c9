"""One stream as its node reports it, with a ring buffer of its newest text.

All viewers of this server share it. A viewer keeps only its own position.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from lattice.domain.logchunk import piece_of
from lattice.domain.logs import Gap, Piece, Position, StreamName
from lattice.features.logs.service.frames import PackedFrame

RING_BYTES = 2 * 1024 * 1024
"""The most text that the ring of one stream keeps."""
_AT_ONCE_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class FedStream:
    """One stream, as far as its node has reported it."""

    name: StreamName
    reported_end: Position = field(default_factory=Position)
    """As the node reported it; the ring may have more."""
    stored_offset: int = 0
    path: str = ""
    labelled: bool = False
    trouble: str = ""
    gaps: tuple[Gap, ...] = ()
    ring: deque[Piece | PackedFrame] = field(default_factory=deque)
    ring_bytes: int = 0
    ring_end: int = 0
    most_ring_bytes: int = RING_BYTES
    taken: int = -1
    """The furthest offset that a viewer requested from the ring."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `taken` changes."""
    no_patience_until: float = 0.0
    expanded: Piece | None = None
    """The frame that was expanded last: viewers mostly read the same one."""

    @property
    def crowded(self) -> bool:
        """True if more text would soon push the fastest viewer out of the ring."""
        if not self.ring or self.taken < self.ring[0].at.offset:
            return False
        return self.ring_end - self.taken > self.most_ring_bytes // 2

    def keep(self, piece: Piece | PackedFrame) -> None:
        """Add the newest piece and drop the oldest."""
        if self.ring and piece.at.offset != self.ring_end:
            self.ring.clear()
            self.ring_bytes = 0
        self.ring.append(piece)
        self.ring_bytes += piece.memory_bytes
        self.ring_end = piece.end_offset
        while self.ring_bytes > self.most_ring_bytes and len(self.ring) > 1:
            self.ring_bytes -= self.ring.popleft().memory_bytes

    @property
    def end(self) -> Position:
        """The known end."""
        if self.ring_end > self.reported_end.offset:
            # Lines are counted on request, not for every piece.
            self.reported_end = self.ring[-1].end
        return self.reported_end

    def has(self, offset: int) -> bool:
        """True if the ring has the text at an offset."""
        return bool(self.ring) and self.ring[0].at.offset <= offset < self.ring_end

    def pieces(self, offset: int) -> list[Piece | PackedFrame]:
        """Text of the ring from an offset on, at most about 256 KiB; empty if it is not there.

        A frame may begin before the offset.
        """
        if offset > self.taken:
            self.taken = offset
            self.moved.set()
        if not self.has(offset):
            return []
        # From the newest backwards: viewers mostly need the last few of very many.
        behind: deque[Piece | PackedFrame] = deque()
        for piece in reversed(self.ring):
            behind.appendleft(piece)
            if piece.at.offset <= offset:
                break
        first, size = behind.popleft(), 0
        found = [first.starting_at(offset) if isinstance(first, Piece) else first]
        for piece in behind:
            size += piece.memory_bytes
            if size > _AT_ONCE_BYTES:
                break
            found.append(piece)
        return _joined(found) if len(found) > 1 else found

    def expand(self, frame: PackedFrame) -> Piece:
        """The text of a frame of the ring. Raises `Unavailable`."""
        found = self.expanded
        if found is None or found.at != frame.at:
            found = self.expanded = piece_of(frame.placed, frame.text())
        return found


def _joined(pieces: list[Piece | PackedFrame]) -> list[Piece | PackedFrame]:
    """Join neighbours of the same time: later steps cost by piece, not by byte."""
    found: list[Piece | PackedFrame] = []
    for is_piece, some in groupby(pieces, key=lambda each: isinstance(each, Piece)):
        if not is_piece:
            found += some
            continue
        neighbours = (each for each in some if isinstance(each, Piece))
        for (time_ms, late), run in groupby(neighbours, key=attrgetter("time_ms", "late")):
            first, *others = run
            text = b"".join((first.text, *(each.text for each in others))) if others else first.text
            found.append(Piece(first.at, time_ms, late, text))
    return found
