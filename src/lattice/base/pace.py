"""The pauses between polls: short at first, then every few seconds. Pure except for the clock."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.clock import Clock, SystemClock

_FIRST_S = 1.0
_LARGEST_S = 5.0
_GROWTH = 1.5


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
