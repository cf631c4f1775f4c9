"""Applies the filter of one query to lines of its streams, in workers.

The event loop assembles lines and passes them on in batches. A thread searches them in the caller's
turn, so that no other caller waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.turns import Turns
from lattice.domain.logs import Gap
from lattice.features.logs.lines import Lines
from lattice.features.logs.service.records import LineFilter
from lattice.features.logs.service.view import Filtered, Item, StreamView


class Sieve:
    """One caller's filter."""

    def __init__(self, line_filter: LineFilter, turns: Turns, caller: str) -> None:
        self._filter = line_filter
        self._turns = turns
        self._caller = caller

    def works_on(self, stream: StreamView) -> bool:
        """False if it would change nothing."""
        return stream.labelled or self._filter.has_patterns

    async def filtered(self, stream: StreamView, items: list[Lines | Gap]) -> list[Item]:
        """In the same order; lines without a match become one item."""
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
    # Joined only while time increases, so that the merge by time gives the same order.
    if (
        isinstance(before, Filtered)
        and not before.runs
        and not item.runs
        and before.time_ms <= item.time_ms
    ):
        found[-1] = Filtered(before.at, item.end, item.time_ms)
    else:
        found.append(item)
