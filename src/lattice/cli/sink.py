"""A place to write to without blocking."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_PIECE_BYTES = 64 * 1024
_FULL_BYTES = 128 * 1024


class Sink:
    """Takes everything at once, and writes what can be written.

    A terminal or a pipe is opened again, because O_NONBLOCK on an inherited descriptor would affect
    all processes that share it, the shell included.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own: int | None = None
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode) or os.isatty(descriptor):
            with suppress(OSError):
                self._own = os.open(
                    f"/proc/self/fd/{descriptor}",
                    os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                )
        # If that is impossible: so much can be written whenever `select` reports it writable.
        waits = self._own is None and not stat.S_ISREG(mode)
        self._most = 512 if waits else _PIECE_BYTES
        self._asks_first = waits
        self._held = bytearray()

    def fileno(self) -> int:
        """For `select`."""
        return self._descriptor if self._own is None else self._own

    @property
    def wants_write(self) -> bool:
        """True if something is left to write."""
        return bool(self._held)

    @property
    def full(self) -> bool:
        """True if nothing should be added now."""
        return len(self._held) > _FULL_BYTES

    def write(self, text: bytes) -> None:
        """Write at once what can be written, and keep the rest."""
        if not self._held and not self._asks_first:
            text = text[self._put(text) :]
        self._held += text

    def flush(self) -> None:
        """Write what can be written now; call it when `select` reports the descriptor."""
        while self._held:
            sent = self._put(bytes(memoryview(self._held)[: self._most]))
            del self._held[:sent]
            if not sent or self._asks_first:
                return

    def _put(self, text: bytes) -> int:
        try:
            return os.write(self.fileno(), memoryview(text)[: self._most])
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the reopened descriptor only."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
