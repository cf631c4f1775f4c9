"""`UserReadings`: reads the jobs of single users, few at a time.

A reading is shared by all who asked before it began.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from lattice.base.clock import Clock

_AT_ONCE = 4

Users = frozenset[str]


@dataclass(frozen=True, slots=True)
class AskedTime:
    """When Slurm was asked for what has been read."""

    at: datetime
    at_s: float


@dataclass(slots=True)
class _Reading:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    waiting: int = 0
    asked: AskedTime | None = None


class UserReadings:
    """One reading of the same users at a time."""

    def __init__(self, read: Callable[[Users], Awaitable[bool]], clock: Clock) -> None:
        """`read` returns False if it failed."""
        self.failed_s = -math.inf
        """When a reading failed last."""
        self._read = read
        self._clock = clock
        self._readings: dict[Users, _Reading] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._turns = itertools.count(1)

    async def fresh(self, users: Users) -> AskedTime | None:
        """Return after a reading that began after this call: when it did, or None if it failed."""
        asked = next(self._turns)
        reading = self._readings.setdefault(users, _Reading())
        reading.waiting += 1
        try:
            async with reading.lock:
                if reading.begun < asked:
                    async with self._slots:
                        reading.begun = next(self._turns)
                        reading.asked = await self._ask(users)
                return reading.asked
        finally:
            reading.waiting -= 1
            if not reading.waiting:
                del self._readings[users]

    async def _ask(self, users: Users) -> AskedTime | None:
        asked = AskedTime(self._clock.now(), self._clock.monotonic())
        if await self._read(users):
            return asked
        self.failed_s = self._clock.monotonic()
        return None
