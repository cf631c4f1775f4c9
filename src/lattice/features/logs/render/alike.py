"""Equal lines of many writers, put together: a thousand ranks that start alike take one line. Pure.

Lines are held for a moment. In it a line joins an earlier one that reads the same, but only if
that keeps it behind everything its own writer wrote before: each writer's lines stay in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from lattice.domain.logs import LogKind
from lattice.features.logs.render.labels import Writer
from lattice.features.logs.render.lines import Head, LineText
from lattice.features.logs.render.repeats import Repeats

FROM = 3
"""Two of a kind are shorter as they are."""


class Group:
    """One text, and all who wrote it; `heads` in the order in which they did."""

    __slots__ = ("heads", "text", "writers")

    def __init__(self, text: str) -> None:
        self.text = text
        self.heads: list[Head] = []
        self.writers: set[Writer] = set()

    @property
    def together(self) -> bool:
        """True if it is shown as one line for all."""
        return len(self.writers) >= FROM


class Alike:
    """Lines in; groups of them out, when the moment is over."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._places: dict[tuple[str, LogKind], list[int]] = {}
        self._last: dict[Writer, int] = {}
        self.held = 0
        self.joined = False
        """True if the last lines joined others of which there are many."""

    def take(self, head: Head, lines: Iterable[str]) -> None:
        """Hold lines of one writer, which the head must name."""
        writer = head.writer
        assert writer is not None
        last = self._last.get(writer, 0)
        self.joined = False
        for text in lines:
            places = self._places.setdefault((text, writer.kind), [])
            found = bisect_left(places, last)
            if found < len(places):
                last = places[found]
            else:
                last = len(self._groups)
                places.append(last)
                self._groups.append(Group(text))
            self._groups[last].heads.append(head)
            self._groups[last].writers.add(writer)
            self.joined = self.joined or self._groups[last].together
            self.held += 1
        self._last[writer] = last

    def end(self) -> list[Group]:
        """The moment is over: what it held."""
        groups = self._groups
        self._groups, self.held = [], 0
        self._places.clear()
        self._last.clear()
        return groups


def shown(groups: Iterable[Group], lines: LineText, repeats: Repeats) -> list[str]:
    """Groups as lines to show."""
    out: list[str] = []
    for group in groups:
        if group.together:
            first, count = group.heads[0], len(group.heads)
            out += repeats.end()
            out.append(lines.together(first, group.text, count, group.writers))
        else:
            for head in group.heads:
                out += repeats.take(head, group.text)
    return out
