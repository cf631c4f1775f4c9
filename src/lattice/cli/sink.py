"""Somewhere to write without ever waiting for it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

_PIECE_BYTES = 64 * 1024
_FULL_BYTES = 128 * 1024


class Sink:
    """Takes everything at once, and writes what can be written.

    A terminal or a pipe is opened once more: O_NONBLOCK on the descriptor that was inherited
    would be everybody's who has it, the shell's too.
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
        # Where that can't be: so much can be written whenever `select` says that some can.
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
        """True if nothing should be added just now."""
        return len(self._held) > _FULL_BYTES

    def write(self, text: bytes) -> None:
        """At once, as far as it goes."""
        if not self._held and not self._asks_first:
            text = text[self._put(text) :]
        self._held += text

    def flush(self) -> None:
        """What goes now; call it when `select` says so."""
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
        """The own descriptor only."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
