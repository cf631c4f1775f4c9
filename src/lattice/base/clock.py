"""Time as a port, so that no test has to sleep, and the pauses between polls.

`SystemClock` is the real clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol

_FIRST_S = 1.0
_LARGEST_S = 5.0
_GROWTH = 1.5


class Clock(Protocol):
    """Wall time for what people read, monotonic time for durations."""

    def now(self) -> datetime:
        """The current time, always aware and in UTC."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def pauses(timeout_s: float | None, clock: Clock | None = None) -> Iterator[float]:
    """Seconds to wait before each further poll, until the time is over.

    The last pause is cut so that one poll falls exactly on the end.
    """
    clock = clock or SystemClock()
    start = clock.monotonic()
    pause = _FIRST_S
    while True:
        left = None if timeout_s is None else timeout_s - (clock.monotonic() - start)
        if left is not None and left <= 0:
            return
        yield pause if left is None else min(pause, left)
        pause = min(pause * _GROWTH, _LARGEST_S)
