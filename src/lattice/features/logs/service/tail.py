"""The last lines of several streams together: where they begin in each.

Numbers are held and no text: a million lines may be a gigabyte. Whoever wants the lines reads them
from where they begin.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lattice.domain.logs import Gap, Position, StreamName
from lattice.features.logs.service.archive import Span
from lattice.features.logs.service.merge import MergedView
from lattice.features.logs.service.view import Filtered, Item, Start, StreamView

_NUMBERS = 5
_TOGETHER_BYTES = 256 * 1024
"""Runs of one stream that follow each other are held as one, up to so much text."""


class LastLines:
    """Of runs of lines that come in order, where the last so many lines begin."""

    def __init__(self, count: int) -> None:
        self._surplus = -count
        self._streams: dict[StreamName, int] = {}
        self._runs = array("q")
        """For each: its stream, where its reading began (offset, line), its first line, lines."""
        self._first = 0

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return self._runs.itemsize * len(self._runs)

    def add(self, name: StreamName, at: Position, line: int, count: int) -> None:
        """One more run: `count` lines from `line` on, in what was read from `at` on."""
        stream = self._streams.setdefault(name, len(self._streams))
        if not self._is_joined(stream, at, line, count):
            self._runs.extend((stream, at.offset, at.line, line, count))
        self._surplus += count
        self._let_go()

    def starts(self) -> dict[StreamName, tuple[Position, int]]:
        """For each stream that has any: where to begin to read, and its first line."""
        names = list(self._streams)
        found: dict[StreamName, tuple[Position, int]] = {}
        surplus = max(0, self._surplus)
        for first in range(self._first, len(self._runs), _NUMBERS):
            stream, offset, at_line, line, count = self._runs[first : first + _NUMBERS]
            skipped = min(surplus, count)
            surplus -= skipped
            # The beginning of a broken line counts as none, and is shown with what is around it.
            if skipped < count or not (count or surplus):
                found.setdefault(names[stream], (Position(offset, at_line), line + skipped))
        return found

    def _is_joined(self, stream: int, at: Position, line: int, count: int) -> bool:
        runs = self._runs
        if len(runs) - self._first < _NUMBERS:
            return False
        before, offset, _, first, lines = runs[-_NUMBERS:]
        if before != stream or first + lines != line or at.offset - offset > _TOGETHER_BYTES:
            return False
        runs[-1] += count
        return True

    def _let_go(self) -> None:
        """What can't be among the last."""
        runs = self._runs
        while self._surplus > 0 and runs[self._first + _NUMBERS - 1] <= self._surplus:
            self._surplus -= runs[self._first + _NUMBERS - 1]
            self._first += _NUMBERS
        if 2 * self._first > len(runs):
            del runs[: self._first]
            self._first = 0


async def go_to_last(
    tail: int, items: AsyncGenerator[tuple[StreamView, Item]], view: MergedView, span: Span
) -> tuple[list[tuple[StreamView, Gap]], dict[StreamName, int]]:
    """Have each stream begin where its part of the last lines does.

    `items` is everything, read here to its end. Gives the gaps before the last lines, and where
    each stream ended.
    """
    last = LastLines(tail)
    gaps: list[tuple[StreamView, Gap]] = []
    async with aclosing(items):
        async for stream, item in items:
            if isinstance(item, Gap):
                gaps.append((stream, item))
                continue
            for _, lines in item.runs if isinstance(item, Filtered) else ((None, item),):
                last.add(stream.name, item.at, lines.at.line, lines.count)
    ends = {name: each.lines.expected for name, each in view.streams.items()}
    starts: dict[StreamName, Start] = {}
    for name, (at, line) in last.starts().items():
        starts[name] = Start(at, line, time_ms=span.since_ms, until_ms=span.until_ms)
        view.streams[name].begin_again(starts[name])
    before = [
        (stream, each)
        for stream, each in gaps
        if stream.name not in starts or not starts[stream.name].covers(each)
    ]
    return before, ends
