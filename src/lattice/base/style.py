"""How text may look where it is going: width, colour, glyphs, and whose time is told. Pure.

The shell looks at the terminal once and passes this on, so that rendering needs no terminal.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}


class Style:
    """`width` is None where lines are never cut (a pipe); `zone` is None for the machine's own.

    `height` is what can be repainted; None where nothing is.
    """

    __slots__ = ("colour", "glyphs", "height", "wide", "width", "zone")

    def __init__(
        self,
        *,
        width: int | None = None,
        height: int | None = None,
        colour: bool = False,
        glyphs: bool = True,
        wide: bool = False,
        zone: tzinfo | None = None,
    ) -> None:
        self.width = width
        self.height = height
        self.colour = colour
        self.glyphs = glyphs
        self.wide = wide
        self.zone = zone

    def paint(self, text: str, look: str) -> str:
        """The text in a look such as `green` or `bold`; unchanged where there is no colour."""
        if not self.colour or not look or not text:
            return text
        codes = ";".join(_CODES[each] for each in look.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def glyph(self, sign: str, plain: str) -> str:
        """A sign, or its plain form where the terminal can't show it."""
        return sign if self.glyphs else plain

    def local(self, moment: datetime) -> datetime:
        """The moment in the zone people asked for."""
        return moment.astimezone(self.zone)

    @property
    def is_utc(self) -> bool:
        """True if times are told in UTC."""
        return self.zone is UTC
