"""The local terminal: changed while a program uses it, and then exactly as before."""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from typing import Any, NoReturn

_USUAL = (24, 80)
_LARGEST_SIDE = 4096
"""As far as `lattice.domain.terminal` accepts it."""
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


class LocalTerminal:
    """Call `raw` and `restore` as often as needed; the original state is kept."""

    def __init__(self, keys: int, screen: int) -> None:
        self.keys = keys
        self.screen = screen
        self._before = termios.tcgetattr(keys)
        self._raw = False

    def raw(self) -> None:
        """Every key as it is typed, every byte as it is written."""
        mode = termios.tcgetattr(self.keys)
        mode[0] &= ~(
            termios.IGNBRK
            | termios.BRKINT
            | termios.PARMRK
            | termios.ISTRIP
            | termios.INLCR
            | termios.IGNCR
            | termios.ICRNL
            | termios.IXON
            | termios.INPCK
        )
        mode[1] &= ~termios.OPOST
        mode[2] = (mode[2] & ~(termios.CSIZE | termios.PARENB)) | termios.CS8
        mode[3] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        mode[6] = list(mode[6])
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys, termios.TCSANOW, mode)
        self._raw = True

    def restore(self, *, drop_keys: bool = False) -> None:
        """Restore the original modes. `drop_keys` discards unread input and terminal replies."""
        if not self._raw:
            return
        self._raw = False
        with suppress(termios.error):  # the terminal may be gone
            if drop_keys:
                termios.tcflush(self.keys, termios.TCIFLUSH)
            # Not TCSADRAIN, which waits for a reader that may never read.
            termios.tcsetattr(self.keys, termios.TCSANOW, self._before)

    def size(self) -> tuple[int, int]:
        """Rows and columns; 24 and 80 if the terminal reports none."""
        try:
            answer = ioctl(self.screen, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return _USUAL
        rows, columns, _, _ = struct.unpack("HHHH", answer)
        return min(rows, _LARGEST_SIDE) or _USUAL[0], min(columns, _LARGEST_SIDE) or _USUAL[1]


class Guardian:
    """A child process that restores the terminal if this process is killed or crashes.

    It guards from now on, until it is dismissed. The terminal is raw already. The child holds only
    the terminal and the end of a pipe, through which it gets the bytes that would undo the changes.
    When the pipe closes before `dismiss`, it writes them, restores the modes and exits.
    """

    def __init__(self, terminal: LocalTerminal) -> None:
        raw = termios.tcgetattr(terminal.keys)
        reads, self._writes = os.pipe2(os.O_CLOEXEC)
        self._sent = b""
        self._child = os.fork()
        if not self._child:
            try:
                _guard(terminal, raw, reads)
            finally:
                os._exit(0)
        os.close(reads)

    def note(self, undo: bytes) -> None:
        """Set the bytes that would restore the screen as of now."""
        if undo != self._sent:
            self._sent = undo
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
    retained = sorted({terminal.keys, terminal.screen, reads})
    for begin, end in zip([-1, *retained], [*retained, 65536], strict=True):
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


def listen(act: Callable[[str], None]) -> Callable[[], None]:
    """Call `act` with each key, in another thread.

    The returned function ends that and restores the terminal.
    Only for the terminal's foreground group: a background process would be stopped for touching it.
    """
    from threading import Thread  # noqa: PLC0415 - most commands never need one

    keys = sys.stdin.fileno()
    if not os.isatty(keys) or os.tcgetpgrp(keys) != os.getpgrp():
        return lambda: None
    before = termios.tcgetattr(keys)
    now = termios.tcgetattr(keys)
    # Interrupts stay on; only line mode and echo are off.
    now[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(keys, termios.TCSADRAIN, now)
    hears, ends = os.pipe()

    def hear() -> None:
        while hears not in (ready := select.select([keys, hears], [], [])[0]):
            if ready and not (typed := os.read(keys, 1)):
                break
            act(typed.decode("latin-1"))
        os.close(hears)

    def stop() -> None:
        nonlocal ends
        if ends >= 0:
            os.close(ends)
            ends = -1
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    Thread(target=hear, name="keys", daemon=True).start()
    return stop
