"""Equal lines: of one writer in a row, shown once with their number, or of many writers. Pure.

A thousand ranks that start alike take one line. Lines are held for a moment. A line joins an
earlier equal one only if it stays behind all earlier lines of its own writer. So each writer's
lines stay in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from lattice.domain.logs import LogKind
from lattice.features.logs.render.labels import LabelWriter
from lattice.features.logs.render.lines import Head, LineText

FROM = 3
"""Two equal lines are shorter as they are."""


class Repeats:
    """Takes lines and returns lines to show. `waiting` is the count of the current run."""

    def __init__(self, times: str = "×") -> None:
        self._times = times
        self._last: tuple[Head, str] | None = None
        self._count = 0

    def take(self, head: Head, line: str) -> list[str]:
        """The lines to show after this one. Equal lines of another writer are different."""
        last = self._last
        self._last = (head, line)
        if last is not None and last[1] == line and last[0].label == head.label and line:
            self._count += 1
            return []
        shown = self._run(last)
        self._count = 1
        return [*shown, head.time + head.label + line]

    @property
    def waiting(self) -> str:
        """`  × 63`; empty if nothing waits."""
        return f"  {self._times} {self._count}" if self._count > 1 else ""

    def end(self) -> list[str]:
        """End the run; returns what is left to show of it."""
        shown = self._run(self._last)
        self._last, self._count = None, 0
        return shown

    def _run(self, last: tuple[Head, str] | None) -> list[str]:
        if last is None or self._count < 2:
            return []
        if self._count >= FROM:
            return [f"  {self._times} {self._count}"]
        head, line = last
        return [head.time + head.label + line]


class LineGroup:
    """One text and all its writers; `heads` in the order of writing."""

    __slots__ = ("heads", "text", "writers")

    def __init__(self, text: str) -> None:
        self.text = text
        self.heads: list[Head] = []
        self.writers: set[LabelWriter] = set()

    @property
    def together(self) -> bool:
        """True if it is shown as one line."""
        return len(self.writers) >= FROM


class Alike:
    """Holds lines and returns them as groups."""

    def __init__(self) -> None:
        self._groups: list[LineGroup] = []
        self._places: dict[tuple[str, LogKind], list[int]] = {}
        self._last: dict[LabelWriter, int] = {}
        self.held = 0
        self.joined = False
        """True if the last lines joined a group that is shown as one line."""

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
                self._groups.append(LineGroup(text))
            self._groups[last].heads.append(head)
            self._groups[last].writers.add(writer)
            self.joined = self.joined or self._groups[last].together
            self.held += 1
        self._last[writer] = last

    def end(self) -> list[LineGroup]:
        """Return the groups and start again."""
        groups = self._groups
        self._groups, self.held = [], 0
        self._places.clear()
        self._last.clear()
        return groups


def shown(groups: Iterable[LineGroup], lines: LineText, repeats: Repeats) -> list[str]:
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
