"""Time as a port, so that no test has to sleep. `SystemClock` is the real one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


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
