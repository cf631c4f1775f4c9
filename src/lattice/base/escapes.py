"""Makes program output safe for a terminal and keeps it readable.

Colours (SGR) pass and end with their line. Everything else that a terminal obeys is shown as
visible text, by the rule of `lattice.base.text`: escapes, C1, bidirectional marks, NUL. Carriage
returns are folded: the line shows what a terminal would show in the end, so a progress bar becomes
its last state. Pure, and fast for text without any of this.
"""

from __future__ import annotations

import re

from lattice.base.text import cells, inert

_PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n"
_CONTROLS = tuple(bytes((each,)) for each in range(0x80) if each not in _PLAIN)
_LARGE_BYTES = 32 * 1024
_COLOUR = (
    r"(?:[349][0-7]|10[0-7]|[34]9|[34]8[;:]5[;:]\d{1,3}|[34]8[;:]2[;:]\d{0,3}(?:[;:]\d{1,3}){2,3})"
)
# Left out: 5 and 6 blink, 8 hides, 10 to 20 change the font.
_ATTRIBUTE = rf"(?:{_COLOUR}|4:[0-5]|0{{0,2}}[0-4]|0{{0,2}}[79]|2[1-5]|2[789])"
_SGR = re.compile(rf"(\x1b\[(?:{_ATTRIBUTE})?(?:;(?:{_ATTRIBUTE})?){{0,15}}m)")
_ANY_SGR = re.compile(r"\x1b\[[\d;:]{0,64}m")
_ERASE = re.compile(r"\x1b\[[0-2]?[JK]")
RESET = "\x1b[0m"


def plain(text: str) -> bool:
    """True if every character is printable, a tab or a line feed, so nothing has to be done."""
    if text.isascii():
        return plain_ascii(text.encode("ascii"))
    return text.replace("\n", "").replace("\t", "").isprintable()


def plain_ascii(text: bytes) -> bool:
    """True if every byte is a printable character of ASCII, a tab or a line feed."""
    if len(text) < _LARGE_BYTES:
        return not text.translate(None, _PLAIN)
    # So many searches for one byte are faster than one look at each byte.
    return text.isascii() and not any(each in text for each in _CONTROLS)


def safe(line: str, *, colour: bool = True) -> str:
    """Make one line, without its line feed, safe. Without `colour` its own colours are removed."""
    if "\r" in line:
        line = folded(line)
    if plain(line):
        return line
    if not colour:
        return _visible(_ANY_SGR.sub("", line))
    if "\x1b" not in line:
        return _visible(line)
    parts = _SGR.split(line)
    # The parts at odd indexes are matches of the pattern.
    shown = "".join(part if at % 2 else _visible(part) for at, part in enumerate(parts))
    return shown + RESET if len(parts) > 1 else shown


def _visible(text: str) -> str:
    return "\t".join(map(inert, text.split("\t"))) if "\t" in text else inert(text)


def folded(line: str) -> str:
    """What a terminal shows of a line after carriage returns have overwritten it.

    Its escapes stay for `safe`, except those that erase: they are part of the redrawing.
    """
    *before, last = [part for part in line.split("\r") if part] or [""]
    shown, erased = _erased(last)
    if erased or not before:
        return shown
    width = _width(shown)
    for part in reversed(before):
        older, erased = _erased(part)
        # The end of a longer, older text is still visible. Its colours are dropped.
        tail = _from_cell(_ANY_SGR.sub("", older), width)
        if tail:
            shown += (RESET if "\x1b" in shown else "") + tail
            width = _width(shown)
        if erased:
            break
    return shown


def _erased(part: str) -> tuple[str, bool]:
    if "\x1b" not in part:
        return part, False
    shown, count = _ERASE.subn("", part)
    return shown, count > 0


def _width(text: str) -> int:
    return cells(_ANY_SGR.sub("", text) if "\x1b" in text else text)


def _from_cell(text: str, start: int) -> str:
    if text.isascii():
        return text[start:]
    used = 0
    for at, letter in enumerate(text):
        if used >= start:
            return text[at:]
        used += cells(letter)
    return ""
