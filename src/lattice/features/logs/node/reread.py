"""Reads a stream's spool forwards, for a listener that is late or slow.

A closed chunk stays open once its reading began. So it can be read to its end even if it was stored
and removed meanwhile. Used by one thread at a time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lattice.domain.logchunk import (
    TAIL_BYTES,
    BadChunk,
    PlacedFrame,
    expand,
    index_size,
    pieces_of,
    read_index,
)
from lattice.domain.logs import Piece
from lattice.features.logs.node.spool import StreamSpool


@dataclass(slots=True)
class _HeldChunk:
    file: BinaryIO
    frames: tuple[PlacedFrame, ...]
    number: int
    """The frame that was read last: the next request is mostly for the next one."""

    def frame_at(self, offset: int) -> PlacedFrame | None:
        order = (*range(self.number, len(self.frames)), *range(self.number))
        for number in order:
            placed: PlacedFrame = self.frames[number]
            if placed.begin.offset <= offset < placed.end.offset:
                self.number = number
                return placed
        return None


class SpoolReader:
    """Reads one spool."""

    def __init__(self, spool: StreamSpool) -> None:
        self._spool = spool
        self._held: _HeldChunk | None = None

    def pieces(self, offset: int) -> list[Piece]:
        """The text at an offset, up to the end of its frame; empty if it is not here any more."""
        found = self._in_held(offset)
        if found is None and self._hold(offset):
            found = self._in_held(offset)
        return self._spool.pieces(offset) if found is None else found

    def close(self) -> None:
        """Close the held chunk."""
        if self._held is not None:
            self._held.file.close()
            self._held = None

    def _in_held(self, offset: int) -> list[Piece] | None:
        held = self._held
        placed = held.frame_at(offset) if held else None
        if held is None or placed is None:
            return None
        size = placed.frame.stored_bytes
        try:
            text = expand(os.pread(held.file.fileno(), size, placed.stored_at), placed.frame)
        except (OSError, BadChunk):
            self.close()
            return None
        pieces = pieces_of(placed, text)
        return [each.starting_at(offset) for each in pieces if each.end_offset > offset]

    def _hold(self, offset: int) -> bool:
        for _, path in self._spool.closed():
            with suppress(OSError, BadChunk):
                file, frames = _opened(path)
                if frames and frames[0].begin.offset <= offset < frames[-1].end.offset:
                    self.close()
                    self._held = _HeldChunk(file, frames, 0)
                    return True
                file.close()
        return False


def _opened(path: Path) -> tuple[BinaryIO, tuple[PlacedFrame, ...]]:
    file = path.open("rb", buffering=0)
    try:
        size = os.fstat(file.fileno()).st_size
        tail = os.pread(file.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        if (needed := index_size(tail)) > len(tail):
            tail = os.pread(file.fileno(), needed, max(0, size - needed))
        return file, tuple(read_index(tail, size).placed())
    except BaseException:
        file.close()
        raise
