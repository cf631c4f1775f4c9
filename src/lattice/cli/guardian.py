"""A child process that restores the terminal if this process is killed or crashes.

It holds only the terminal and the end of a pipe, through which it gets the bytes that would undo
the changes. When the pipe closes before `dismiss`, it writes them, restores the modes and exits.
"""

from __future__ import annotations

import os
import signal
import struct
import termios
from contextlib import suppress
from typing import Any, NoReturn

from lattice.cli.terminal import LocalTerminal

_SIZE = struct.Struct("!H")
_DEAF_TO = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    # A background process may set a terminal only if it ignores this.
    signal.SIGTTOU,
    signal.SIGTTIN,
    signal.SIGWINCH,
)


class Guardian:
    """Guards from now on, until it is dismissed. The terminal is raw already."""

    def __init__(self, terminal: LocalTerminal) -> None:
        raw = termios.tcgetattr(terminal.keys)
        reads, self._writes = os.pipe2(os.O_CLOEXEC)
        self._told = b""
        self._child = os.fork()
        if not self._child:
            try:
                _guard(terminal, raw, reads)
            finally:
                os._exit(0)
        os.close(reads)

    def note(self, undo: bytes) -> None:
        """Set the bytes that would restore the screen as of now."""
        if undo != self._told:
            self._told = undo
            with suppress(OSError):  # it is only a precaution
                os.write(self._writes, _SIZE.pack(len(undo)) + undo)

    def dismiss(self) -> None:
        """End the child; the terminal is restored already."""
        with suppress(OSError):
            os.kill(self._child, signal.SIGKILL)
        os.close(self._writes)
        with suppress(OSError):
            os.waitpid(self._child, 0)


def _guard(terminal: LocalTerminal, raw: list[Any], reads: int) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    # Above all the connection: it must end with its owner.
    kept = sorted({terminal.keys, terminal.screen, reads})
    for begin, end in zip([-1, *kept], [*kept, 65536], strict=True):
        # In Python 3.11 an empty range (0, 0) would close everything.
        if begin + 1 < end:
            os.closerange(begin + 1, end)
    undo = b""
    while head := os.read(reads, _SIZE.size):
        size = _SIZE.unpack(head)[0]
        undo = os.read(reads, size) if size else b""
    if undo:
        os.write(terminal.screen, undo)
    # A faster shell has set its own modes by now.
    if termios.tcgetattr(terminal.keys) == raw:
        terminal.restore()
    os._exit(0)
