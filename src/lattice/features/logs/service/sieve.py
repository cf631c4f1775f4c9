"""The filter of one question at work: lines of its streams, taken apart in workers.

The event loop puts lines together and hands them over in batches. A thread has them searched, in
the caller's turn, so that nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.turns import Turns
from lattice.domain.logs import Gap
from lattice.features.logs.service.lines import Lines
from lattice.features.logs.service.records import LineFilter
from lattice.features.logs.service.view import Filtered, Item, StreamView


class Sieve:
    """One caller's filter."""

    def __init__(self, line_filter: LineFilter, turns: Turns, caller: str) -> None:
        self._filter = line_filter
        self._turns = turns
        self._caller = caller

    def works_on(self, stream: StreamView) -> bool:
        """False if it would leave everything as it is."""
        return stream.labelled or self._filter.has_patterns

    async def filtered(self, stream: StreamView, items: list[Lines | Gap]) -> list[Item]:
        """In the same order; what matches nowhere is one item, however many lines it had."""
        found: list[Item] = []
        if items:
            torn = [isinstance(each, Lines) and stream.is_torn(each.at) for each in items]
            steps = self._steps(list(zip(items, torn, strict=True)), stream.labelled, found)
            await self._turns.run(self._caller, steps)
        return found

    def _steps(
        self, items: list[tuple[Lines | Gap, bool]], labelled: bool, found: list[Item]
    ) -> Iterator[None]:
        for item, torn in items:
            if isinstance(item, Gap):
                found.append(item)
                continue
            runs = []
            for run in self._filter.steps(item, labelled=labelled, torn=torn):
                if run is None:
                    yield
                else:
                    runs.append(run)
            _append(found, Filtered(item.at, item.end, item.time_ms, tuple(runs)))


def _append(found: list[Item], item: Filtered) -> None:
    before = found[-1] if found else None
    # Joined only as far as time goes on: then merging by time gives the same order.
    if (
        isinstance(before, Filtered)
        and not before.runs
        and not item.runs
        and before.time_ms <= item.time_ms
    ):
        found[-1] = Filtered(before.at, item.end, item.time_ms)
    else:
        found.append(item)
