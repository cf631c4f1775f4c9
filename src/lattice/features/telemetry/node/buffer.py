"""What was measured and is not stored yet: in memory, fifteen minutes of it, oldest first.

A restart of the agent loses what waits here; what was measured counts by the thousand and its loss
is a gap in a curve, which is shown as one. What has no room goes oldest first, and is counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from lattice.domain.measured import JobSnapshot
from lattice.features.telemetry.node.rows import Layouts, Row

KEPT_S = 900.0
_SERIES_BYTES = 110
"""About what the names of one series take of a message."""


class SampleBuffer:
    """In the loop only."""

    def __init__(
        self, now: Callable[[], float], most_bytes: int, *, kept_s: float = KEPT_S
    ) -> None:
        self._now = now
        self._most_bytes = most_bytes
        self._kept_ms = kept_s * 1000
        self._layouts = Layouts()
        self._rows: deque[Row] = deque()
        self._some = asyncio.Event()
        self.size_bytes = 0
        self.lost_total = 0
        """Samples that were dropped for want of room, or because they waited too long."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def samples(self) -> int:
        """How many wait."""
        return sum(len(row.values) for row in self._rows)

    def add(self, snapshot: JobSnapshot) -> None:
        """Every sample of it waits from now on."""
        for row in self._layouts.rows_of(snapshot, snapshot.samples):
            self._rows.append(row)
            self.size_bytes += row.size_bytes
        self._drop()
        if self._rows:
            self._some.set()

    async def some(self) -> None:
        """Return once something waits."""
        await self._some.wait()

    def take(self, most_bytes: int, wanted: Callable[[Row], bool] | None = None) -> list[Row]:
        """The oldest, as many as fit in a message; they are the caller's until given back.

        Those that are not `wanted` stay where they are.
        """
        taken: list[Row] = []
        passed: list[Row] = []
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

    def give_back(self, rows: Sequence[Row]) -> None:
        """They were not stored: they are the oldest still."""
        self._rows.extendleft(reversed(rows))
        self.size_bytes += sum(row.size_bytes for row in rows)
        self._drop()
        self._settle()

    def shift(self, by_s: float) -> None:
        """The servers' time has become known: what waits was stamped without it."""
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
