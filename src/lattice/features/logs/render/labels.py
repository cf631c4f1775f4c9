"""Who wrote a line: its label, only where there is more than one writer, in a colour that stays.

The colour comes from a hash of the name, so a node has the same one in every run and for everyone.
They are told apart without telling red from green, and the label says it anyway. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from lattice.base.style import Style
from lattice.base.text import inert, pad
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogBlock

PREFIXES = ("auto", "none", "node", "rank")

# Of the 256 colours of terminals, near those of Okabe and Ito, on dark and on light.
_COLOURS = (39, 208, 36, 178, 75, 166, 175, 109, 143, 104, 173, 72)


def colour_of(name: str) -> int:
    """The number of the name's colour among the 256."""
    return _COLOURS[crc32(name.encode("utf-8", "replace")) % len(_COLOURS)]


class Labels:
    """What stands before a line. `known` are the writers there are, as node and rank."""

    def __init__(
        self, prefix: str, style: Style, known: Iterable[tuple[str, int | None]] = ()
    ) -> None:
        self._prefix = prefix
        self._style = style
        self._nodes: set[str] = set()
        self._ranks: set[tuple[str, int]] = set()
        self._width = 0
        self._made: dict[tuple[str, int | None, LogKind], str] = {}
        for node, rank in known:
            self._meet(node, rank)

    def before(self, block: LogBlock) -> str:
        """`n2 │ ` or `n2:3 │ `; empty while there is nothing to tell apart."""
        if self._prefix == "none":
            return ""
        if self._prefix == "auto":
            self._meet(block.node, block.rank)
            if len(self._nodes) < 2 and len(self._ranks) < 2:
                return ""
        key = (block.node, block.rank, block.stream)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(block)
        return made

    def _meet(self, node: str, rank: int | None) -> None:
        if node not in self._nodes or (rank is not None and (node, rank) not in self._ranks):
            self._nodes.add(node)
            if rank is not None:
                self._ranks.add((node, rank))
            # The form of all may change with the first of a second node or rank.
            self._made.clear()

    def _make(self, block: LogBlock) -> str:
        label = inert(block.node)
        ranked = self._prefix == "rank" or (self._prefix == "auto" and len(self._ranks) > 1)
        if ranked and block.rank is not None:
            label += f":{block.rank}"
        self._width = max(self._width, len(label))
        style = self._style
        bar = ("│", "|") if block.stream is LogKind.STDOUT else ("┃", "!")
        text = f"{pad(label, self._width)} {style.glyph(*bar)} "
        if not style.colour:
            return text
        return f"\x1b[38;5;{colour_of(label)}m{text}\x1b[0m"
