"""Keys for the client and not for the shell: `~.`, `~?`, `~^Z`, `~~`. Pure.

A tilde counts only at the beginning of a line, as in ssh. Large pieces, and what follows within a
moment, are pasted and not typed. They pass unchanged, so a text with `~.` at the beginning of a
line ends no session.
"""

from __future__ import annotations

from enum import Enum

LARGEST_TYPED_BYTES = 64
PASTE_GAP_S = 0.1
_LINE_ENDS = b"\r\n"


class EscapeAct(Enum):
    """What the client has to do."""

    LEAVE = "."
    HELP = "?"
    SUSPEND = "\x1a"


_ACTS = {ord(act.value): act for act in EscapeAct}
_TILDE = ord("~")

HELP_LINES = (
    "~.   end this session",
    "~^Z  suspend lattice; `fg` comes back",
    "~?   this help",
    "~~   a tilde",
    "(only at the beginning of a line)",
)


class EscapeKeys:
    """`feed` splits the input into bytes to send and acts to perform, in order."""

    def __init__(self) -> None:
        self._begins = True
        self._tilde = False
        self._pasting_until = 0.0

    def feed(self, typed: bytes, now: float) -> list[bytes | EscapeAct]:
        """Split what was read at this time."""
        if not typed:
            return []
        pasted = len(typed) > LARGEST_TYPED_BYTES or now < self._pasting_until
        if pasted:
            self._pasting_until = now + PASTE_GAP_S
        if pasted or not (self._tilde or b"~" in typed):
            held, self._tilde = b"~" if self._tilde else b"", False
            self._begins = typed[-1] in _LINE_ENDS
            return [held + typed]
        found: list[bytes | EscapeAct] = []
        plain = bytearray()
        for key in typed:
            if self._tilde:
                self._tilde = False
                act = _ACTS.get(key)
                if act is not None:
                    if plain:
                        found.append(bytes(plain))
                        plain.clear()
                    found.append(act)
                    self._begins = True
                    continue
                # `~~` is one tilde; before any other key a tilde is itself.
                plain += b"~" if key == _TILDE else bytes((_TILDE, key))
                self._begins = key in _LINE_ENDS
            elif key == _TILDE and self._begins:
                self._tilde = True
            else:
                plain.append(key)
                self._begins = key in _LINE_ENDS
        if plain:
            found.append(bytes(plain))
        return found
