"""Samples that are not stored yet: 15 minutes in memory, oldest first.

A restart of the agent loses them; that is a visible gap in a curve. If there is no room, the oldest
are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from lattice.domain.measured import JobSnapshot
from lattice.features.telemetry.node.rows import Layouts, SampleRow

KEPT_S = 900.0
_SERIES_BYTES = 110
"""Approximate size of one series' names in a message."""


class SampleBuffer:
    """Holds rows. Used from the event loop only."""

    def __init__(
        self, now: Callable[[], float], most_bytes: int, *, kept_s: float = KEPT_S
    ) -> None:
        self._now = now
        self._most_bytes = most_bytes
        self._kept_ms = kept_s * 1000
        self._layouts = Layouts()
        self._rows: deque[SampleRow] = deque()
        self._some = asyncio.Event()
        self.size_bytes = 0
        self.lost_total = 0
        """Samples that were dropped for lack of room, or because they waited too long."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def samples(self) -> int:
        """Number of samples that wait."""
        return sum(len(row.values) for row in self._rows)

    def add(self, snapshot: JobSnapshot) -> None:
        """Add all samples of a snapshot."""
        for row in self._layouts.rows_of(snapshot, snapshot.samples):
            self._rows.append(row)
            self.size_bytes += row.size_bytes
        self._drop()
        if self._rows:
            self._some.set()

    async def some(self) -> None:
        """Wait until there is a row."""
        await self._some.wait()

    def take(
        self, most_bytes: int, wanted: Callable[[SampleRow], bool] | None = None
    ) -> list[SampleRow]:
        """Remove and return the oldest rows that fit in a message. `give_back` returns them.

        Rows that are not `wanted` stay in place.
        """
        taken: list[SampleRow] = []
        passed: list[SampleRow] = []
        named: set[tuple[object, int]] = set()
        left = most_bytes
        while self._rows:
            row = self._rows[0]
            if wanted is not None and not wanted(row):
                passed.append(self._rows.popleft())
                continue
            key = (row.identity, id(row.layout))
            cost = len(row.values) * (10 if key in named else 10 + _SERIES_BYTES)
            if taken and cost > left:
                break
            left -= cost
            named.add(key)
            taken.append(self._rows.popleft())
            self.size_bytes -= row.size_bytes
        self._rows.extendleft(reversed(passed))
        self._settle()
        return taken

    def give_back(self, rows: Sequence[SampleRow]) -> None:
        """Put rows back at the front: they were not stored."""
        self._rows.extendleft(reversed(rows))
        self.size_bytes += sum(row.size_bytes for row in rows)
        self._drop()
        self._settle()

    def shift(self, by_s: float) -> None:
        """Correct the times of waiting rows once the servers' time is known."""
        for row in self._rows:
            row.time_ms += round(by_s * 1000)

    def _drop(self) -> None:
        oldest_ms = self._now() * 1000 - self._kept_ms
        rows = self._rows
        while rows and (self.size_bytes > self._most_bytes or rows[0].time_ms < oldest_ms):
            row = rows.popleft()
            self.size_bytes -= row.size_bytes
            self.lost_total += len(row.values)

    def _settle(self) -> None:
        if self._rows:
            self._some.set()
        else:
            self._some.clear()
