"""The label before a line, if there is more than one writer. Pure.

A hash of the name gives a node or a rank its colour. So it is the same in every run and for
everybody. The colours don't depend on telling red from green, and the label has the name anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from lattice.base.escapes import RESET
from lattice.base.style import Style
from lattice.base.text import cells, inert, pad
from lattice.domain.logs import LogKind
from lattice.domain.nodeset import NodeSet
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.model import LogBlock

PREFIXES = ("auto", "none", "node", "rank")

# Of the 256 terminal colours, close to those of Okabe and Ito, for dark and light backgrounds.
_COLOURS = (39, 208, 36, 178, 75, 166, 175, 109, 143, 104, 173, 72)
_COLOUR = "\x1b[38;5;{}m"
_WIDEST = 24
"""One very long name must not push all other lines out of sight."""
_NAMED_CELLS = 28
_FEW = 2


class LabelWriter(NamedTuple):
    """The writer of a line, as far as known."""

    node: str
    rank: int | None
    kind: LogKind


def colour_of(name: str) -> int:
    """The number of the name's colour among the 256."""
    return _COLOURS[crc32(name.encode("utf-8", "replace")) % len(_COLOURS)]


def nodes_named(nodes: Iterable[str]) -> str:
    """`n[1-3,7]`, with control characters made safe."""
    names = list(dict.fromkeys(nodes))
    try:
        return inert(NodeSet(names).fold())
    except ValueError:
        return ",".join(map(inert, names))


class Labels:
    """Makes labels. `known` are the writers so far, as node and rank.

    `expected` may write later, and the labels have room for them from the first line on.
    `node_count` may be larger than the number of known nodes.
    """

    def __init__(
        self,
        prefix: str,
        style: Style,
        known: Iterable[tuple[str, int | None]] = (),
        expected: Iterable[tuple[str, int | None]] = (),
        node_count: int = 0,
    ) -> None:
        self._prefix = prefix
        self._style = style
        self._nodes: set[str] = set()
        self._ranks: set[tuple[str, int]] = set()
        self._width = 0
        self._made: dict[tuple[str, int | None, LogKind], str] = {}
        for node, rank in known:
            self._meet(node, rank)
        self._expected = dict.fromkeys(expected)
        self._node_count = node_count
        self._all_nodes = {node for node, _ in self._expected}

    def before(self, block: LogBlock | LinesFrame) -> str:
        """`n2 │ ` or `n2:3 │ `; empty while there is one writer."""
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

    def several(self, count: int, kind: LogKind) -> str:
        """`×63 │ `, in place of a label."""
        text = self._style.glyph("×", "x") + str(count)
        return self._style.paint(pad(text, self._room(text)), "bold") + self._bar(kind)

    def named(self, writers: Iterable[LabelWriter]) -> str:
        """`all`, `all but n7`, `n[1-32]` or `45 of 64 nodes`: the writers of a group."""
        group = {(each.node, each.rank) for each in writers}
        nodes = {node for node, _ in group}
        count = max(self._node_count, len(self._nodes | self._all_nodes))
        if len(self._nodes | self._all_nodes) == count:
            others = {each for each in self._all() if each not in group}
            if not others:
                return "all"
            if len(others) <= _FEW < len(group):
                return "all but " + ", ".join(self._label(*each) for each in sorted(others))
        if len(nodes) == count:
            return "on all nodes" if count > 1 else f"{len(group)} ranks"
        folded = nodes_named(sorted(nodes))
        return folded if cells(folded) <= _NAMED_CELLS else f"{len(nodes)} of {count} nodes"

    def _all(self) -> Iterable[tuple[str, int | None]]:
        if self._expected:
            return self._expected
        ranked: set[tuple[str, int | None]] = {*self._ranks}
        without = self._nodes - {node for node, _ in ranked}
        return ranked | {(node, None) for node in without}

    def _meet(self, node: str, rank: int | None) -> None:
        if node not in self._nodes or (rank is not None and (node, rank) not in self._ranks):
            self._nodes.add(node)
            if rank is not None:
                self._ranks.add((node, rank))
            # A second node or rank may change the form of all labels.
            self._made.clear()

    @property
    def _is_ranked(self) -> bool:
        return self._prefix == "rank" or (self._prefix == "auto" and len(self._ranks) > 1)

    def _label(self, node: str, rank: int | None) -> str:
        name = inert(node)
        return f"{name}:{rank}" if self._is_ranked and rank is not None else name

    def _room(self, label: str) -> int:
        """The width of labels, with this one."""
        if not self._width:
            self._width = max((cells(self._label(*each)) for each in self._expected), default=0)
            self._width = min(self._width, _WIDEST)
        self._width = max(self._width, min(cells(label), _WIDEST))
        return max(self._width, cells(label))

    def _bar(self, kind: LogKind) -> str:
        sign = ("│", "|") if kind is LogKind.STDOUT else ("┃", "!")
        return f" {self._style.glyph(*sign)} "

    def _make(self, block: LogBlock | LinesFrame) -> str:
        label = self._label(block.node, block.rank)
        space = " " * (self._room(label) - cells(label))
        bar = self._bar(block.stream)
        if not self._style.colour:
            return label + space + bar
        node = inert(block.node)
        own = _COLOUR.format(colour_of(node))
        rank = label.removeprefix(node)
        if rank:
            rank = _COLOUR.format(colour_of(rank)) + rank + own
        return own + node + rank + space + bar + RESET
