"""The local terminal: raw while a remote program uses it, and then exactly as before."""

from __future__ import annotations

import struct
import termios
from contextlib import suppress
from fcntl import ioctl

_USUAL = (24, 80)
_LARGEST_SIDE = 4096
"""As far as `lattice.domain.terminal` accepts it."""


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
