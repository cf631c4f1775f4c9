"""How often to ask again: soon at first, then every few seconds. Pure but for the clock."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.clock import Clock, SystemClock

_FIRST_S = 1.0
_LARGEST_S = 5.0
_GROWTH = 1.5


def pauses(timeout_s: float | None, clock: Clock | None = None) -> Iterator[float]:
    """The seconds to wait before each further question, ending when the time is over.

    The last pause is cut so that one question falls exactly on the end.
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
