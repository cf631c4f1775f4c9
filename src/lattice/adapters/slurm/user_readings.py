"""`UserReadings`: reads the jobs of single users, few at a time.

A reading is shared by all who asked before it began.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

_AT_ONCE = 4

Users = frozenset[str]


@dataclass(slots=True)
class _Reading:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: int = 0
    waiting: int = 0


class UserReadings:
    """One reading of the same users at a time."""

    def __init__(self, read: Callable[[Users], Awaitable[object]]) -> None:
        self._read = read
        self._readings: dict[Users, _Reading] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._turns = itertools.count(1)

    async def fresh(self, users: Users) -> None:
        """Return after a reading that began after this call."""
        asked = next(self._turns)
        reading = self._readings.setdefault(users, _Reading())
        reading.waiting += 1
        try:
            async with reading.lock:
                if reading.begun < asked:
                    async with self._slots:
                        reading.begun = next(self._turns)
                        await self._read(users)
        finally:
            reading.waiting -= 1
            if not reading.waiting:
                del self._readings[users]
