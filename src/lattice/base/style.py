"""How text may look at its destination: width, colour, glyphs, time zone. Pure.

The shell examines the terminal once and passes this on, so that rendering needs no terminal.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}


class Style(NamedTuple):
    """`width` is None if lines are never cut (a pipe); `zone` is None for the machine's zone.

    `height` is the number of lines that can be repainted, or None.
    """

    width: int | None = None
    height: int | None = None
    colour: bool = False
    glyphs: bool = True
    wide: bool = False
    zone: tzinfo | None = None

    def paint(self, text: str, attributes: str) -> str:
        """The text with attributes such as `green` or `bold`; unchanged without colour."""
        if not self.colour or not attributes or not text:
            return text
        codes = ";".join(_CODES[each] for each in attributes.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def glyph(self, sign: str, plain: str) -> str:
        """A sign, or its plain form if the terminal can't show it."""
        return sign if self.glyphs else plain

    def local(self, moment: datetime) -> datetime:
        return moment.astimezone(self.zone)

    @property
    def is_utc(self) -> bool:
        """True if times are shown in UTC."""
        return self.zone is UTC
