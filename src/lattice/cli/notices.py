"""Our own lines among a program's output, on a terminal that the program uses.

In a full-screen program a notice is the window's title, and becomes a line when the program leaves
the screen. It never splits an escape sequence. The line of the cursor, usually a prompt, is written
again below the notice.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice.base.text import inert
from lattice.cli.screenstate import ScreenState

_PUSH_TITLE, _POP_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"


class TerminalNotices:
    """`say` something; call `look` after output was written."""

    def __init__(self, screen: ScreenState, write: Callable[[bytes], None]) -> None:
        self._screen = screen
        self._write = write
        self._waiting: list[str] = []
        self._in_title = False

    def say(self, text: str) -> None:
        """Show it now, or as soon as possible."""
        self._waiting.append(inert(text))
        if self._screen.full_screen and not self._screen.amid:
            if not self._in_title:
                self._write(_PUSH_TITLE)
                self._in_title = True
            self._write(b"\x1b]2;" + inert(text).encode(errors="replace") + b"\x07")
        self.look()

    def look(self) -> None:
        """Write waiting notices, if they can be written now."""
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
        """The notices that were never shown. Restores the title."""
        if self._in_title:
            self._write(_POP_TITLE)
            self._in_title = False
        lines, self._waiting = self._waiting, []
        return lines
