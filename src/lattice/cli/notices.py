"""Lines of our own among a program's output, on a terminal that is the program's.

Never inside a full-screen program's picture: there a notice is the window's title, and becomes a
line when the program gives the screen back. Never inside an escape sequence either. The line the
cursor stood on, a prompt mostly, is written again below the notice.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice.base.text import inert
from lattice.cli.screenstate import ScreenState

_PUSH_TITLE, _POP_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"


class Notices:
    """`say` something; `look` whenever output has been written."""

    def __init__(self, screen: ScreenState, write: Callable[[bytes], None]) -> None:
        self._screen = screen
        self._write = write
        self._waiting: list[str] = []
        self._in_title = False

    def say(self, text: str) -> None:
        """Show it now, or as soon as it can be."""
        self._waiting.append(inert(text))
        if self._screen.full_screen and not self._screen.amid:
            if not self._in_title:
                self._write(_PUSH_TITLE)
                self._in_title = True
            self._write(b"\x1b]2;" + inert(text).encode(errors="replace") + b"\x07")
        self.look()

    def look(self) -> None:
        """Write what has waited, if it can be written now."""
        screen = self._screen
        if screen.full_screen or screen.amid:
            return
        if self._in_title:
            self._write(_POP_TITLE)
            self._in_title = False
        if self._waiting:
            lines, self._waiting = self._waiting, []
            line = screen.line
            begin = b"" if screen.at_line_start else b"\r\n"
            text = "".join(f"{each}\r\n" for each in lines).encode(errors="replace")
            self._write(begin + text + (line or b""))

    def left(self) -> list[str]:
        """What was never shown; and the title as it was."""
        if self._in_title:
            self._write(_POP_TITLE)
            self._in_title = False
        lines, self._waiting = self._waiting, []
        return lines
