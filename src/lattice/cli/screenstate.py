"""The state that the bytes written to a terminal have left, and notices that respect it. No I/O.

It is no terminal emulator. It tracks whether a full-screen program is active and what has to be
undone if the program can't do it any more. It also tracks the text on the line of the cursor.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lattice.base.text import inert

_ALTERNATE = frozenset({47, 1047, 1049})
_ON = _ALTERNATE | {1, 5, 6, 9, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026}
"""Modes that are off in a terminal at rest."""
_OFF = frozenset({7, 25})
"""Modes that are on at rest: wrapping, and a visible cursor."""
_SEQUENCE = re.compile(
    rb"\x1b(?:\[\?(?P<modes>[0-9;]{1,64})(?P<set>[hl])"
    rb"|\[(?P<region>[0-9;]{0,16})r"
    rb"|\[>4(?P<keys>[0-9;]{0,8})m"
    rb"|(?P<push>\[>[0-9;]{0,8}u)"
    rb"|\[(?P<cursor>[0-9]{0,3}) q"
    rb"|(?P<pop>\[<[0-9]{0,3}u)"
    rb"|(?P<pad>[=>])"
    rb"|(?P<charset>\([0AB])"
    rb"|(?P<whole>c|\[!p))"
)
_SIMPLE = {
    "region": (b";", b"\x1b7\x1b[r\x1b8"),
    "keys": (b";0", b"\x1b[>4;0m"),
    "cursor": (b"0", b"\x1b[0 q"),
    "pad": (b">", b"\x1b>"),
    "charset": (b"(B", b"\x1b(B"),
}
"""By name: the value at rest, and the sequence that restores it. The cursor's style, vim's keys, …
"""
_OPEN_END = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,4}|\][^\x07\x1b]{0,512}\x1b?|[()*+#])?\Z")
_STEERS = re.compile(rb"\x1b(?:\[[0-9;]*[ABEFGHJLMSTdfrs]|[78DM])")
_WINDOW = re.compile(rb"\x1b\[[0-9;]*t")
"""A command to the window, such as restoring its title. It must not be repeated."""
_LONGEST_LINE = 2048
_PUSH_TITLE, _POP_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"


class ScreenState:
    """`feed` it everything that is written."""

    def __init__(self) -> None:
        self._modes: dict[int, bool] = {}
        self._other: dict[str, bytes] = {}
        self._held = b""
        self._line: bytes | None = b""

    @property
    def full_screen(self) -> bool:
        """True while a program uses the whole screen."""
        return any(self._modes.get(mode) for mode in _ALTERNATE)

    @property
    def amid(self) -> bool:
        """True if the last bytes begin a sequence that has not ended."""
        return bool(self._held)

    @property
    def at_line_start(self) -> bool:
        """True if the cursor is known to be at the beginning of a line."""
        return self._line == b""

    @property
    def line(self) -> bytes | None:
        """The text since the last line feed, if writing it again would show the same."""
        if self._line is None or self.full_screen or _STEERS.search(self._line):
            return None
        return _WINDOW.sub(b"", self._line)

    def feed(self, piece: bytes) -> None:
        """Process what is written."""
        whole = self._held + piece if self._held else piece
        if b"\x1b" in whole:
            for found in _SEQUENCE.finditer(whole):
                full_screen = self.full_screen
                self._note(found)
                if full_screen and not self.full_screen:
                    # The cursor is back below the typed command, on an empty line.
                    self._line, piece = b"", whole[found.end() :]
            # A sequence that has not ended is at the very end, and is short.
            unended = _OPEN_END.search(whole, max(0, len(whole) - 600))
            self._held = whole[unended.start() :] if unended else b""
        self._follow_line(piece)

    def _note(self, found: re.Match[bytes]) -> None:
        kind = found.lastgroup or ""
        if kind in _SIMPLE:
            rest, undo = _SIMPLE[kind]
            self._keep(kind, found[kind].strip(rest), undo)
        elif kind == "set":
            on = found["set"] == b"h"
            for mode in found["modes"].split(b";"):
                if mode.isdigit() and len(mode) <= 5:
                    self._switch(int(mode), on=on)
        elif kind == "push":
            self._other[kind] = self._other.get(kind, b"") + b"\x1b[<u"
        elif kind == "pop":
            self._other.pop("push", None)
        elif kind == "whole":
            self._modes.clear()
            self._other.clear()

    def _switch(self, mode: int, *, on: bool) -> None:
        if mode in _ON or mode in _OFF:
            if on is (mode in _ON):
                self._modes[mode] = on
            else:
                self._modes.pop(mode, None)

    def _keep(self, name: str, changed: bytes, undo: bytes) -> None:
        if changed:
            self._other[name] = undo
        else:
            self._other.pop(name, None)

    def _follow_line(self, piece: bytes) -> None:
        at = piece.rfind(b"\n")
        if at >= 0:
            line: bytes | None = piece[at + 1 :]
        elif self._line is None:
            return
        else:
            line = self._line + piece
        self._line = None if line is not None and len(line) > _LONGEST_LINE else line

    def undo(self) -> bytes:
        """The bytes that restore the terminal after its program is gone; empty if unchanged."""
        parts = list(self._other.values())
        # The alternate screen last: what was set inside it is undone inside it.
        for mode, on in sorted(self._modes.items(), key=lambda pair: pair[0] in _ALTERNATE):
            parts.append(b"\x1b[?%d%s" % (mode, b"l" if on else b"h"))
        return b"\x1b[0m" + b"".join(parts) if parts else b""


class TerminalNotices:
    """Our own lines among a program's output: `show` one; call `flush` after output was written.

    In a full-screen program a notice is the window's title, and becomes a line when the program
    leaves the screen. It never splits an escape sequence. The line of the cursor, usually a prompt,
    is written again below the notice.
    """

    def __init__(self, screen: ScreenState, write: Callable[[bytes], None]) -> None:
        self._screen = screen
        self._write = write
        self._waiting: list[str] = []
        self._in_title = False

    def show(self, text: str) -> None:
        """Show it now, or as soon as possible."""
        self._waiting.append(inert(text))
        if self._screen.full_screen and not self._screen.amid:
            if not self._in_title:
                self._write(_PUSH_TITLE)
                self._in_title = True
            self._write(b"\x1b]2;" + inert(text).encode(errors="replace") + b"\x07")
        self.flush()

    def flush(self) -> None:
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
