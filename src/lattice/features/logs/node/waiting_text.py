"""The text of a feed that was read and is not sent yet, within bounds of memory.

Beyond the bound only positions are kept: the text itself is in the job's file or the spool.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lattice.domain.logs import Piece, Position
from lattice.features.logs.node.capture import Added
from lattice.features.logs.node.filenames import StreamKey

_MOST_BYTES = 4 * 1024 * 1024
_MOST_TEXTS = 10_000


@dataclass(frozen=True, slots=True)
class WaitingText:
    """Text of one read. Without `text` it is in the file or the spool."""

    key: StreamKey
    at: Position
    size: int
    lines: int
    time_ms: int
    late: bool
    text: bytes | None

    def piece(self, text: bytes) -> Piece:
        return Piece(self.at, self.time_ms, self.late, text, self.lines)


class WaitingTexts:
    """All of them, in the order of reading."""

    def __init__(self) -> None:
        self._texts: deque[WaitingText] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, added: Added) -> bool:
        """Add text, or only its position; False if there is no room even for that."""
        if len(self._texts) >= _MOST_TEXTS:
            return False
        size = len(added.text)
        fits = self._bytes + size <= _MOST_BYTES
        text = added.text if fits else None
        self._bytes += size if fits else 0
        key = (added.kind, added.source)
        self._texts.append(
            WaitingText(key, added.at, size, added.lines, added.time_ms, added.late, text)
        )
        return True

    def pop(self) -> WaitingText:
        """Remove the oldest."""
        found = self._texts.popleft()
        if found.text is not None:
            self._bytes -= found.size
        return found

    def pop_of(self, key: StreamKey, most: int) -> Piece | None:
        """Remove the oldest, if it is of this stream, in memory and not too large."""
        if not self._texts:
            return None
        first = self._texts[0]
        if first.key != key or first.text is None or first.size > most:
            return None
        self.pop()
        return first.piece(first.text)

    def first_of(self, key: StreamKey) -> Position | None:
        """Where the oldest text of a stream begins."""
        return next((each.at for each in self._texts if each.key == key), None)
