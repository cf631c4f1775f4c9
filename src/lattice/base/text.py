"""Makes text from outside safe to show, and measures it in terminal cells. Pure.

Strangers write job names, node names and error texts. Text could move the cursor, set a title, or
reorder or hide its surroundings. Such characters are shown as visible escapes. The rule is
`str.isprintable`: control, format, surrogate, private and unassigned characters are never printed
raw, and nothing has to be listed.
"""

from __future__ import annotations

import shlex

from lattice.base.errors import UsageError


def shell_split(text: str) -> tuple[str, ...]:
    """Split the text into words as a shell does. Raises `UsageError`."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} can't be split into words: {error}") from None


_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x7f": "\u2421"}
ELLIPSIS = "…"


def inert(text: str) -> str:
    """The text with every unprintable character as a visible escape."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _visible(letter) for letter in text)


def _visible(letter: str) -> str:
    if letter in _WRITTEN:
        return _WRITTEN[letter]
    point = ord(letter)
    if point < 0x20:
        return chr(0x2400 + point)
    if letter.isspace() and point not in {0x85, 0x2028, 0x2029}:
        return " "
    return _escaped(point, pair=False)


def _escaped(point: int, *, pair: bool) -> str:
    if point <= 0xFF and not pair:
        return f"\\x{point:02x}"
    if point <= 0xFFFF:
        return f"\\u{point:04x}"
    if not pair:
        return f"\\U{point:08x}"
    high, low = divmod(point - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def inert_json(document: str) -> str:
    """An equal JSON document without characters that a terminal obeys.

    Outside strings JSON is ASCII, so every other character is in a string and may be escaped.
    """
    if document.isprintable():
        return document
    return "".join(
        letter if letter == "\n" or letter.isprintable() else _escaped(ord(letter), pair=True)
        for letter in document
    )


def cells(text: str) -> int:
    """The number of terminal cells that the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_letter_cells, text))


def _letter_cells(letter: str) -> int:
    # Imported late, so that only text beyond ASCII loads the tables.
    from unicodedata import category, east_asian_width  # noqa: PLC0415

    if category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if east_asian_width(letter) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells, with an ellipsis if it was cut."""
    if cells(text) <= width:
        return text
    shown, used = [], 0
    for letter in text:
        used += _letter_cells(letter)
        if used > width - 1:
            break
        shown.append(letter)
    return "".join(shown) + ELLIPSIS if width > 0 else ""


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text padded with spaces to `width` cells, on the left for numbers."""
    space = " " * (width - cells(text))
    return space + text if right else text + space


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces; a longer word is cut in pieces."""
    lines, line = [], ""
    for word in text.split():
        while cells(word) > width:
            if line:
                lines.append(line)
                line = ""
            piece = _head(word, width)
            lines.append(piece)
            word = word[len(piece) :]  # noqa: PLW2901 - the rest of the same word
        joined = f"{line} {word}" if line else word
        if cells(joined) > width:
            lines.append(line)
            joined = word
        line = joined
    return [*lines, line] if line else lines


def _head(word: str, width: int) -> str:
    used = 0
    for index, letter in enumerate(word):
        used += _letter_cells(letter)
        if used > width:
            return word[: max(index, 1)]
    return word
