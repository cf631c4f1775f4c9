"""The time of the replicas, on a node where the clock may be wrong.

Lines are merged by it, grants are checked by it, and jobs are identified by it. The kernel has a
job's start in the node's time, and Slurm has it in the servers' time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from lattice.base.clock import Clock

_MOST_KEPT = 10_000


class ServerTime:
    """The node's clock, corrected by the link's last measurement."""

    def __init__(self, clock: Clock, ahead_s: Callable[[], float | None]) -> None:
        """`ahead_s`: how far the node's clock is ahead; None before a measurement."""
        self._clock = clock
        self._measured_s = ahead_s
        self._ahead_s: float | None = None
        self._told: dict[float, float] = {}
        self._here: dict[float, float] = {}

    @property
    def ahead_s(self) -> float | None:
        """How far the node's clock is ahead; None before the first measurement."""
        measured_s = self._measured_s()
        if measured_s is not None:
            self._ahead_s = measured_s
        return self._ahead_s

    def now(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self.ahead_s or 0.0)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def told(self, here_s: float) -> float:
        """A time of the node as servers have it, always the same for the same input.

        It is part of a job's identity, so it must not change when the clock is set.
        """
        known_s = self._told.get(here_s)
        if known_s is not None:
            return known_s
        ahead_s = self.ahead_s
        if ahead_s is None:
            return here_s
        return self._pair(here_s, here_s - ahead_s)[1]

    def here(self, told_s: float) -> float:
        """A time from a server, in the node's time; `told` is the inverse."""
        known_s = self._here.get(told_s)
        if known_s is not None:
            return known_s
        ahead_s = self.ahead_s
        if ahead_s is None:
            return told_s
        return self._pair(told_s + ahead_s, told_s)[0]

    def _pair(self, here_s: float, told_s: float) -> tuple[float, float]:
        if len(self._told) >= _MOST_KEPT:
            self._told.clear()
            self._here.clear()
        self._told[here_s], self._here[told_s] = told_s, here_s
        return here_s, told_s
