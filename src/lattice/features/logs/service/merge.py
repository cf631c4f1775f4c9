"""The streams of one query, merged in the order of time, and the last lines of all together."""

from __future__ import annotations

import asyncio
import heapq
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from contextlib import aclosing
from operator import attrgetter

from lattice.domain.logs import Gap, Position, StreamName
from lattice.features.logs.service.archive import Span
from lattice.features.logs.service.view import Filtered, Item, ItemFilter, StreamView, ViewStart

_FETCHED_AT_ONCE = 16
"""Streams that are fetched at the same time for one viewer."""
_NUMBERS = 5
_TOGETHER_BYTES = 256 * 1024
"""Consecutive runs of one stream are kept as one, up to this much text."""


class MergedView:
    """All streams of a query. Only those that changed are visited: most are quiet at any time."""

    def __init__(self) -> None:
        self.streams: dict[StreamName, StreamView] = {}
        self._changed: dict[StreamView, None] = {}
        """Those that may have something to read."""
        self._unfinished: dict[StreamView, None] = {}
        """Those that are not known to be over and read."""

    def add(self, stream: StreamView) -> None:
        """Add a stream; it is to be visited."""
        stream.number = len(self.streams)
        self.streams[stream.name] = stream
        self.mark(stream)

    def mark(self, stream: StreamView) -> None:
        """Visit the stream next time: it may have more text, a gap or an end."""
        self._changed[stream] = None
        self._unfinished[stream] = None

    def mark_all(self) -> None:
        for stream in self.streams.values():
            self.mark(stream)

    def can_leave_to(self, other: MergedView) -> bool:
        """True if the other view has the same streams, and has read and reported as much."""
        return self.streams.keys() == other.streams.keys() and all(
            stream.can_leave_to(other.streams[name]) for name, stream in self.streams.items()
        )

    def leave_to(self, other: MergedView) -> None:
        """Read only up to where the other view is. Raises `Unavailable`."""
        for name, stream in self.streams.items():
            if stream.leave_to(other.streams[name]):
                self.mark(stream)

    @property
    def has_changes(self) -> bool:
        """True if there are streams to visit."""
        return bool(self._changed)

    def take_changed(self) -> list[StreamView]:
        """The streams to visit, in their order; `caught_up` visits them."""
        taken, self._changed = self._changed, {}
        return in_order(taken)

    @property
    def is_complete(self) -> bool:
        """True if there are streams, and each is over and read."""
        while self._unfinished:
            stream = next(iter(self._unfinished))
            if not (stream.is_over and stream.is_read):
                return False
            del self._unfinished[stream]
        return bool(self.streams)

    async def caught_up(
        self,
        streams: Collection[StreamView],
        item_filter: ItemFilter | None = None,
        ends: Mapping[StreamName, int] | None = None,
    ) -> AsyncGenerator[tuple[StreamView, Item]]:
        """Everything up to where these end now, or at `ends`, in the order of time.

        Those that could not be read to their end are visited again next time.
        """
        heap: list[tuple[int, StreamName]] = []
        sources: dict[StreamName, AsyncGenerator[Item]] = {}
        try:
            if len(streams) == 1:
                (stream,) = streams
                end = stream.end.offset if ends is None else ends.get(stream.name, 0)
                only = sources[stream.name] = stream.filtered(end, item_filter)
                async for stream.pending in only:
                    yield stream, stream.give()
                return
            for stream in streams:
                end = stream.end.offset if ends is None else ends.get(stream.name, 0)
                sources[stream.name] = stream.filtered(end, item_filter)
            await _pull_first(heap, sources, streams)
            while heap:
                _, name = heapq.heappop(heap)
                stream = self.streams[name]
                yield stream, stream.give()
                await _pull(heap, sources, stream)
        finally:
            for source in sources.values():
                await source.aclose()
            for stream in streams:
                if not stream.is_read or stream.pending is not None:
                    self.mark(stream)

    def positions(self) -> dict[str, Position]:
        """The position of each stream, by the text of its name."""
        return {stream.text: stream.position for stream in self.streams.values()}


def in_order(streams: Iterable[StreamView]) -> list[StreamView]:
    """As they were added to the view."""
    return sorted(streams, key=attrgetter("number"))


async def _pull_first(
    heap: list[tuple[int, StreamName]],
    sources: Mapping[StreamName, AsyncIterator[Item]],
    streams: Iterable[StreamView],
) -> None:
    """Pull the first item of each. Slow nodes and the store are waited for at the same time."""
    fetched = []
    for stream in streams:
        if stream.is_fetched:
            fetched.append(stream)
        else:
            await _pull(heap, sources, stream)
    waiting = iter(fetched)

    async def pull_some() -> None:
        for stream in waiting:
            await _pull(heap, sources, stream)

    pulling = [asyncio.ensure_future(pull_some()) for _ in fetched[:_FETCHED_AT_ONCE]]
    try:
        await asyncio.gather(*pulling)
    finally:
        for each in pulling:
            each.cancel()
        await asyncio.gather(*pulling, return_exceptions=True)


async def _pull(
    heap: list[tuple[int, StreamName]],
    sources: Mapping[StreamName, AsyncIterator[Item]],
    stream: StreamView,
) -> None:
    item = await anext(sources[stream.name], None)
    if item is not None:
        stream.pending = item
        heapq.heappush(heap, (item.time_ms, stream.name))


class LastLines:
    """Finds where the last lines begin, from runs of lines that come in order.

    Only numbers are kept, and no text: a million lines may be a gigabyte. The lines are read again
    from where they begin.
    """

    def __init__(self, count: int) -> None:
        self._surplus = -count
        self._streams: dict[StreamName, int] = {}
        self._runs = array("q")
        """For each run: its stream, the offset and line of its read, its first line, its lines."""
        self._first = 0

    def add(self, name: StreamName, at: Position, line: int, count: int) -> None:
        """Add a run: `count` lines from `line` on, in what was read from `at` on."""
        stream = self._streams.setdefault(name, len(self._streams))
        if not self._is_joined(stream, at, line, count):
            self._runs.extend((stream, at.offset, at.line, line, count))
        self._surplus += count
        self._let_go()

    def starts(self) -> dict[StreamName, tuple[Position, int]]:
        """For each stream with last lines: where to start reading, and its first line."""
        names = list(self._streams)
        found: dict[StreamName, tuple[Position, int]] = {}
        surplus = max(0, self._surplus)
        for first in range(self._first, len(self._runs), _NUMBERS):
            stream, offset, at_line, line, count = self._runs[first : first + _NUMBERS]
            skipped = min(surplus, count)
            surplus -= skipped
            # The beginning of a broken line counts as no line, and is shown with its neighbours.
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
        """Drop runs that can't be among the last."""
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
    """Make each stream begin at its part of the last lines.

    `items` is everything, read here to its end. Returns the gaps before the last lines, and the end
    of each stream.
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
    starts: dict[StreamName, ViewStart] = {}
    for name, (at, line) in last.starts().items():
        starts[name] = ViewStart(at, line, time_ms=span.since_ms, until_ms=span.until_ms)
        view.streams[name].begin_again(starts[name])
    before = [
        (stream, each)
        for stream, each in gaps
        if stream.name not in starts or not starts[stream.name].covers(each)
    ]
    return before, ends
