"""A rate for all callers together: what is public must not cost more than this."""

from __future__ import annotations

import math

from lattice.base.clock import Clock
from lattice.base.errors import RateLimited


class Bucket:
    """Lets `burst` pass at once and `per_s` in the long run."""

    def __init__(self, per_s: float, burst: int, clock: Clock) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock.monotonic()

    def take(self) -> None:
        """Pass, or raise `RateLimited` with the seconds to wait."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            wait_s = math.ceil((1 - self._left) / self._per_s)
            raise RateLimited("Too many enrolments at once.", retry_after_s=wait_s)
        self._left -= 1
