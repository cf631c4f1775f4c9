"""From pieces of text to blocks of whole lines, on servers and in clients. Pure.

A line has the time at which its line feed was read. A very long line is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from lattice.domain.logs import LONGEST_LINE_BYTES, Piece, Position
from lattice.features.logs.model import has_longer

_VERY_LONG = re.compile(rb"[^\n]{%d,}" % (LONGEST_LINE_BYTES + 1))


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines that were read at one moment, or at the moments of their `marks`."""

    at: Position
    end: Position
    time_ms: int
    late: bool
    text: bytes
    count: int
    cut: int = 0
    unfinished: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    """The time of the lines that end in the first so many bytes. None of them is cut."""


class StoredFrame(Protocol):
    """A frame of stored text that was not expanded."""

    @property
    def at(self) -> Position: ...
    @property
    def end(self) -> Position: ...
    @property
    def time_ms(self) -> int:
        """When its last byte was read."""

    def text(self) -> bytes:
        """Expand it."""


class LineAssembler:
    """Assembles one stream. Pieces come in order and join."""

    __slots__ = ("_at", "_begun", "_begun_bytes", "_passed", "last_ms")

    def __init__(self, at: Position, last_ms: int = 0, begun: bytes = b"") -> None:
        """`begun` is the text from `at` on that was read already, without a line feed."""
        self._at = at
        self._begun = begun
        self._begun_bytes = len(begun)
        self._passed: StoredFrame | None = None
        """The last frame that was passed unread."""
        self.last_ms = last_ms
        """When the last piece was read, in ms; 0 before the first."""

    @property
    def at(self) -> Position:
        """Where the next line begins."""
        self.read_passed()
        return self._at

    @property
    def expected(self) -> int:
        """The offset that the next piece must have."""
        if self._passed is not None:
            return self._passed.end.offset
        return self._at.offset + self._begun_bytes

    def all_lines(self, piece: Piece) -> Iterator[Lines]:
        """Whole lines, if the piece ends any: at once, unless a line of several reads is cut."""
        self.read_passed()
        is_split = bool(piece.marks) and self._is_long(piece.text)
        for each in piece.by_time() if is_split else (piece,):
            lines = self.take(each)
            if lines is not None:
                yield lines

    def take(self, piece: Piece) -> Lines | None:
        """Whole lines, if the piece ends any. A piece with `marks` must have no very long line."""
        self.read_passed()
        piece = piece.starting_at(self.expected)
        if piece.at.offset != self.expected or not piece.text:
            return None
        self.last_ms = piece.time_ms
        lines = None
        last = piece.text.rfind(b"\n") + 1
        if last:
            before = len(self._begun)
            whole = b"".join((self._begun, memoryview(piece.text)[:last]))
            size = self._begun_bytes + last
            count = piece.line_feeds
            end = Position(self._at.offset + size, self._at.line + count)
            cut = 1 if size > len(whole) else 0
            if has_longer(whole, b"\n", LONGEST_LINE_BYTES):
                whole, more = _VERY_LONG.subn(_beginning, whole)
                cut = max(cut, more)
            marks = tuple((before + each, time_ms) for each, time_ms in piece.marks)
            lines = Lines(self._at, end, piece.time_ms, piece.late, whole, count, cut, marks=marks)
            self._at = end
            self._begun, self._begun_bytes = b"", 0
        rest = piece.text[last:]
        self._begun_bytes += len(rest)
        self._begun += rest[: max(0, LONGEST_LINE_BYTES + 1 - len(self._begun))]
        if self._begun_bytes > len(self._begun) and b"\r" in rest:
            # A progress bar that is redrawn for hours: only its last state matters.
            self._begun = rest[rest.rfind(b"\r") :][: LONGEST_LINE_BYTES + 1]
        return lines

    def pass_frame(self, frame: StoredFrame) -> bytes | None:
        """Continue behind a frame that ends a line, without reading it.

        Returns the beginning of its first line, or None if that is in the frame passed before.
        The frame is read if its end must be known.
        """
        follows = self._passed is not None
        self._passed, self.last_ms = frame, frame.time_ms
        return None if follows else self._begun

    @property
    def can_pass(self) -> bool:
        """False if the line that has begun is already too long to be shown."""
        return self._passed is not None or self._begun_bytes < LONGEST_LINE_BYTES

    def read_passed(self) -> None:
        """Read the frame passed last. Raises what reading it raises."""
        frame, self._passed = self._passed, None
        if frame is not None:
            text = frame.text()
            last = text.rfind(b"\n") + 1
            self._at = Position(frame.at.offset + last, frame.end.line)
            self._begun, self._begun_bytes = b"", 0
            self.take(Piece(self._at, frame.time_ms, False, text[last:], 0))

    def _is_long(self, text: bytes) -> bool:
        """True if a line is longer than what is shown of it."""
        first = text.find(b"\n")
        return (
            first < 0
            or self._begun_bytes + first > LONGEST_LINE_BYTES
            or has_longer(text, b"\n", LONGEST_LINE_BYTES)
        )

    def unfinished(self, time_ms: int, *, late: bool = False) -> Lines | None:
        """The beginning of a line without its end; at a stream's end it is a line."""
        self.read_passed()
        if not self._begun:
            return None
        text = self._begun[:LONGEST_LINE_BYTES]
        end = Position(self._at.offset + self._begun_bytes, self._at.line)
        cut = int(self._begun_bytes > len(text))
        return Lines(self._at, end, time_ms, late, text, 0, cut, unfinished=True)


def last_state(begun: bytes) -> bytes:
    """The last two states of a redrawn line."""
    last = begun.rstrip(b"\r").rfind(b"\r")
    return begun if last < 0 else begun[begun.rfind(b"\r", 0, last) + 1 :]


def _beginning(found: re.Match[bytes]) -> bytes:
    line = found[0]
    redrawn = line.rfind(b"\r", 0, len(line) - 1)
    if redrawn >= 0 and len(line) - redrawn <= LONGEST_LINE_BYTES:
        return line[redrawn:]
    return line[:LONGEST_LINE_BYTES]
