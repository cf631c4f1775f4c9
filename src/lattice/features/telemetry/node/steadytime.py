"""The servers' time on a node, advanced by the kernel's monotonic clock.

Rates are differences over time, so setting a clock must not create one. The time follows the
difference that the link measures slowly. It steps only if that difference persists, or when it is
measured for the first time.
"""

from __future__ import annotations

from collections.abc import Callable

from lattice.base.clock import Clock

LEAP_S = 1.0
"""A larger difference is no inaccuracy: a clock was set."""
_SURE_AFTER_S = 12.0
"""The link measures every 5 s, so it has measured a changed clock by then."""
_SLEW = 0.002
"""As a share of the elapsed time: the largest error of a rate."""


class SteadyTime:
    """Seconds since 1970 by the servers' clock."""

    def __init__(self, clock: Clock, ahead_s: Callable[[], float | None] = lambda: None) -> None:
        """`clock` is the node's own; `ahead_s` returns how far it is ahead of the servers'."""
        self._clock = clock
        self._ahead_s = ahead_s
        self.on_leap: Callable[[float], None] = lambda _: None
        """Called with the size of the step when the difference is first measured."""
        self._measured = ahead_s() is not None
        self._offset_s = self._wanted_s()
        self._looked = clock.monotonic()
        self._doubt_since: float | None = None
        self.leaps = 0
        """Number of steps: no rate may span one."""

    def now(self) -> float:
        monotonic = self._clock.monotonic()
        wrong_s = self._wanted_s() - self._offset_s
        if not self._measured and self._ahead_s() is not None:
            self._measured = True
            self._leap(wrong_s)
            self.on_leap(wrong_s)
        elif abs(wrong_s) <= LEAP_S:
            self._doubt_since = None
            most_s = (monotonic - self._looked) * _SLEW
            self._offset_s += max(-most_s, min(most_s, wrong_s))
        elif self._doubt_since is None:
            self._doubt_since = monotonic
        elif monotonic - self._doubt_since >= _SURE_AFTER_S:
            self._leap(wrong_s)
        self._looked = monotonic
        return monotonic + self._offset_s

    def monotonic(self) -> float:
        return self._clock.monotonic()

    @property
    def wall_ahead_s(self) -> float:
        """How far the node's own clock is ahead of this time."""
        return self._clock.now().timestamp() - self._clock.monotonic() - self._offset_s

    def _wanted_s(self) -> float:
        wall = self._clock.now().timestamp() - (self._ahead_s() or 0.0)
        return wall - self._clock.monotonic()

    def _leap(self, by_s: float) -> None:
        self._offset_s += by_s
        self._doubt_since = None
        self.leaps += abs(by_s) > LEAP_S
