"""`Absences`: when this process could not watch the node's jobs, though the node went on.

A process that is stopped or starved does not notice it. So a pulse measures how late it is itself:
by the monotonic clock, which stands still while the whole node is suspended. What else makes the
watcher miss jobs (a reading that hangs, notices that the kernel dropped) is noted by `NodeJobs`.
"""

from __future__ import annotations

import asyncio

from lattice.base.clock import Clock
from lattice.domain.nodejobs import CLOCK_SLACK_S, Absence

PULSE_S = 1.0
LONGEST_S = CLOCK_SLACK_S
"""A job that came and went within less is still matched by the moment at which it was noticed."""


class Absences:
    """For one reader: what is noted before it reads is given out as one."""

    def __init__(self, clock: Clock, pulse_s: float = PULSE_S) -> None:
        self._clock = clock
        self._pulse_s = pulse_s
        self._beat_at = clock.monotonic()
        self._waiting: Absence | None = None
        self._noted = asyncio.Event()

    async def run(self) -> None:
        """Beat, until cancelled."""
        self._beat_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(self._pulse_s)
            self.beat()

    def beat(self) -> None:
        """Note an absence if the last beat is too long ago."""
        now_s = self._clock.monotonic()
        since_s, self._beat_at = self._beat_at, now_s
        if now_s - since_s > self._pulse_s + LONGEST_S:
            self.note(now_s - since_s)

    def note(self, seconds: float) -> None:
        """Nobody watched for so long until now."""
        until = self._clock.now().timestamp()
        absence = Absence(until - seconds, until)
        before = self._waiting
        self._waiting = before.with_(absence) if before else absence
        self._noted.set()

    async def next(self) -> Absence:
        """The next absence, once there is one."""
        await self._noted.wait()
        self._noted.clear()
        absence, self._waiting = self._waiting, None
        assert absence is not None
        return absence
