"""The text of a feed that was read and is not sent yet, within bounds of memory.

Beyond the bound only positions are kept: the text itself is in the job's file or the spool.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from lattice.domain.logs import Piece, Position
from lattice.features.logs.node.capture import Added
from lattice.features.logs.node.filenames import StreamKey

_MOST_BYTES = 4 * 1024 * 1024
_MOST_TEXTS = 10_000


@dataclass(frozen=True, slots=True)
class WaitingText:
    """Text of one read. Without `text` and `packed` it is in the file or the spool."""

    key: StreamKey
    at: Position
    size: int
    lines: int
    time_ms: int
    late: bool
    text: bytes | None
    packed: Future[bytes] | None = None
    """The frame to send instead of the text."""

    @property
    def end(self) -> Position:
        return Position(self.at.offset + self.size, self.at.line + self.lines)

    def piece(self, text: bytes) -> Piece:
        return Piece(self.at, self.time_ms, self.late, text, self.lines)


class WaitingTexts:
    """All of them, in the order of reading."""

    def __init__(self) -> None:
        self._texts: deque[WaitingText] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, added: Added, *, packed: bool = False) -> bool:
        """Add text, or only its position; False if there is no room even for that.

        With `packed` a large read waits as its frame.
        """
        if len(self._texts) >= _MOST_TEXTS:
            return False
        size = len(added.text)
        fits = self._bytes + size <= _MOST_BYTES
        self._bytes += size if fits else 0
        frame = added.packed if packed and fits else None
        text = added.text if fits and frame is None else None
        key = (added.kind, added.source)
        self._texts.append(
            WaitingText(key, added.at, size, added.lines, added.time_ms, added.late, text, frame)
        )
        return True

    def pop(self) -> WaitingText:
        """Remove the oldest."""
        found = self._texts.popleft()
        if found.text is not None or found.packed is not None:
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
