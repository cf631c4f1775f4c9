"""The streams of one query, merged in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field

from lattice.domain.logs import Position, StreamName
from lattice.features.logs.service.view import Item, ItemFilter, StreamView


@dataclass(eq=False, slots=True)
class MergedView:
    """All streams of a query."""

    streams: dict[StreamName, StreamView] = field(default_factory=dict)

    async def caught_up(
        self,
        item_filter: ItemFilter | None = None,
        ends: Mapping[StreamName, int] | None = None,
    ) -> AsyncGenerator[tuple[StreamView, Item]]:
        """Everything up to where each stream ends now, or at `ends`, in the order of time."""
        heap: list[tuple[int, StreamName]] = []
        sources: dict[StreamName, AsyncGenerator[Item]] = {}
        try:
            for name, stream in tuple(self.streams.items()):
                end = stream.end.offset if ends is None else ends.get(name, 0)
                sources[name] = stream.filtered(end, item_filter)
                await _pull(heap, sources, stream)
            while heap:
                _, name = heapq.heappop(heap)
                stream = self.streams[name]
                yield stream, stream.give()
                await _pull(heap, sources, stream)
        finally:
            for source in sources.values():
                await source.aclose()

    def places(self) -> dict[StreamName, Position]:
        """The position of each stream."""
        return {name: stream.place for name, stream in self.streams.items()}


async def _pull(
    heap: list[tuple[int, StreamName]],
    sources: Mapping[StreamName, AsyncIterator[Item]],
    stream: StreamView,
) -> None:
    item = await anext(sources[stream.name], None)
    if item is not None:
        stream.pending = item
        heapq.heappush(heap, (item.time_ms, stream.name))
