"""Frames of stored text: expanded in threads, or as they are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from lattice.base.errors import Unavailable
from lattice.base.turns import in_few_threads
from lattice.domain.logchunk import BadChunk, PlacedFrame, expand
from lattice.domain.logs import Position
from lattice.features.logs.service.ranges import StoredRange

_TOGETHER = 4
"""Frames expanded together, because a thread's turn costs as much as a frame."""


class FrameForm(Enum):
    """How a stored frame is read."""

    READS = auto()
    """A piece for each time at which the node read it."""
    WHOLE = auto()
    """One piece with all its times."""
    PACKED = auto()
    """As it is stored."""


FrameForms: TypeAlias = Callable[[PlacedFrame], FrameForm]
"""Chooses the form of a frame, just before it is read."""


class ReadFrame(NamedTuple):
    """A frame; only the part within the range counts."""

    part: StoredRange
    placed: PlacedFrame
    form: FrameForm
    content: bytes
    """The text, or the stored bytes of a packed frame."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Adjacent frames, as stored."""

    part: StoredRange
    frames: list[PlacedFrame]
    begin: int
    """The offset of the first one in its object."""
    stored: bytes

    async def frames_from(self, begin: int, form_of: FrameForms) -> AsyncIterator[ReadFrame]:
        """Each frame in its form. A reader has the text of a few in memory, not of a run."""
        number, together = 0, 1
        while number < len(self.frames):
            placed = self.frames[number]
            form = form_of(placed)
            if form is FrameForm.PACKED and self._is_within(placed, begin):
                yield ReadFrame(self.part, placed, form, bytes(self._stored(placed)))
                number += 1
                continue
            # Streams that are merged may be very many, so each has one frame in memory.
            some = self.frames[number : number + (1 if form is FrameForm.READS else together)]
            for each, text in zip(some, await in_few_threads(self._texts, some), strict=True):
                is_split = form_of(each) is FrameForm.READS
                yield ReadFrame(
                    self.part, each, FrameForm.READS if is_split else FrameForm.WHOLE, text
                )
            # The first one alone, because a page needs a quick first answer.
            number, together = number + len(some), _TOGETHER

    def _is_within(self, placed: PlacedFrame, begin: int) -> bool:
        """True if all of the frame is wanted."""
        first = max(begin, self.part.begin)
        return first <= placed.begin.offset and placed.end.offset <= self.part.end

    def _texts(self, frames: list[PlacedFrame]) -> list[bytes]:
        return [expand(self._stored(each), each.frame) for each in frames]

    def _stored(self, placed: PlacedFrame) -> memoryview:
        begin = placed.stored_at - self.begin
        return memoryview(self.stored)[begin : begin + placed.frame.stored_bytes]


@dataclass(frozen=True, slots=True)
class PackedFrame:
    """A frame as it is stored."""

    placed: PlacedFrame
    stored: bytes

    @property
    def at(self) -> Position:
        return self.placed.begin

    @property
    def end(self) -> Position:
        return self.placed.end

    @property
    def end_offset(self) -> int:
        return self.placed.begin.offset + self.placed.frame.plain_bytes

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.stored)

    @property
    def time_ms(self) -> int:
        """When its last byte was read."""
        return self.placed.times_ms[1]

    def text(self) -> bytes:
        """The plain text. Raises `Unavailable`: the caller then asks for expanded text."""
        try:
            return expand(self.stored, self.placed.frame)
        except BadChunk as error:
            raise Unavailable(
                f"A stored part of this log can't be read: {error}.", hint="Read it again."
            ) from None


@dataclass(frozen=True, slots=True)
class PassedFrame:
    """A frame whose lines the caller makes."""

    frame: PackedFrame
    begun: bytes | None
    """The beginning of its first line; None if that is in the frame before it."""

    @property
    def at(self) -> Position:
        return self.frame.at

    @property
    def end(self) -> Position:
        return self.frame.end

    @property
    def time_ms(self) -> int:
        return self.frame.time_ms

    @property
    def count(self) -> int:
        """How many lines end in it."""
        return self.frame.placed.frame.lines
