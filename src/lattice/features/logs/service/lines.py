"""From pieces of text to blocks of whole lines. Pure.

A line belongs to the moment at which its line feed was read. A very long line is kept in part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.logs import LONGEST_LINE_BYTES, Piece, Position

_VERY_LONG = re.compile(rb"[^\n]{%d,}" % (LONGEST_LINE_BYTES + 1))


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines that were read at one moment."""

    at: Position
    end: Position
    time_ms: int
    late: bool
    text: bytes
    count: int
    cut: int = 0
    unfinished: bool = False


class LineAssembler:
    """One stream's. Pieces come in order and join."""

    def __init__(self, at: Position) -> None:
        self.at = at
        """Where the next line begins."""
        self._begun = b""
        self._begun_bytes = 0

    @property
    def expected(self) -> int:
        """The offset that the next piece must have."""
        return self.at.offset + self._begun_bytes

    def take(self, piece: Piece) -> Lines | None:
        """Whole lines, if the piece ends any."""
        piece = piece.starting_at(self.expected)
        if piece.at.offset != self.expected or not piece.text:
            return None
        lines = None
        last = piece.text.rfind(b"\n") + 1
        if last:
            whole = self._begun + piece.text[:last]
            size = self._begun_bytes + last
            count = piece.text.count(b"\n", 0, last)
            end = Position(self.at.offset + size, self.at.line + count)
            cut = 1 if size > len(whole) else 0
            if len(whole) > LONGEST_LINE_BYTES:
                whole, more = _VERY_LONG.subn(_beginning, whole)
                cut = max(cut, more)
            lines = Lines(self.at, end, piece.time_ms, piece.late, whole, count, cut)
            self.at = end
            self._begun, self._begun_bytes = b"", 0
        rest = piece.text[last:]
        self._begun_bytes += len(rest)
        self._begun += rest[: max(0, LONGEST_LINE_BYTES + 1 - len(self._begun))]
        return lines

    def unfinished(self, time_ms: int, *, late: bool = False) -> Lines | None:
        """The beginning of a line whose end was not read; at a stream's end it is a line."""
        if not self._begun:
            return None
        text = self._begun[:LONGEST_LINE_BYTES]
        end = Position(self.at.offset + self._begun_bytes, self.at.line)
        cut = int(self._begun_bytes > len(text))
        return Lines(self.at, end, time_ms, late, text, 0, cut, unfinished=True)


def _beginning(found: re.Match[bytes]) -> bytes:
    return found[0][:LONGEST_LINE_BYTES]
