"""From pieces of text to blocks of whole lines. Pure.

A line has the time at which its line feed was read. A very long line is cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.logs import LONGEST_LINE_BYTES, Piece, Position
from lattice.features.logs.model import has_longer

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
    """Assembles one stream. Pieces come in order and join."""

    def __init__(self, at: Position, last_ms: int = 0) -> None:
        self.at = at
        """Where the next line begins."""
        self._begun = b""
        self._begun_bytes = 0
        self.last_ms = last_ms
        """When the last piece was read, in ms; 0 before the first."""

    @property
    def expected(self) -> int:
        """The offset that the next piece must have."""
        return self.at.offset + self._begun_bytes

    def take(self, piece: Piece) -> Lines | None:
        """Whole lines, if the piece ends any."""
        piece = piece.starting_at(self.expected)
        if piece.at.offset != self.expected or not piece.text:
            return None
        self.last_ms = piece.time_ms
        lines = None
        last = piece.text.rfind(b"\n") + 1
        if last:
            whole = b"".join((self._begun, memoryview(piece.text)[:last]))
            size = self._begun_bytes + last
            count = piece.line_feeds
            end = Position(self.at.offset + size, self.at.line + count)
            cut = 1 if size > len(whole) else 0
            if has_longer(whole, b"\n", LONGEST_LINE_BYTES):
                whole, more = _VERY_LONG.subn(_beginning, whole)
                cut = max(cut, more)
            lines = Lines(self.at, end, piece.time_ms, piece.late, whole, count, cut)
            self.at = end
            self._begun, self._begun_bytes = b"", 0
        rest = piece.text[last:]
        self._begun_bytes += len(rest)
        self._begun += rest[: max(0, LONGEST_LINE_BYTES + 1 - len(self._begun))]
        if self._begun_bytes > len(self._begun) and b"\r" in rest:
            # A progress bar that is redrawn for hours: only its last state matters.
            self._begun = rest[rest.rfind(b"\r") :][: LONGEST_LINE_BYTES + 1]
        return lines

    def unfinished(self, time_ms: int, *, late: bool = False) -> Lines | None:
        """The beginning of a line without its end; at a stream's end it is a line."""
        if not self._begun:
            return None
        text = self._begun[:LONGEST_LINE_BYTES]
        end = Position(self.at.offset + self._begun_bytes, self.at.line)
        cut = int(self._begun_bytes > len(text))
        return Lines(self.at, end, time_ms, late, text, 0, cut, unfinished=True)


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
