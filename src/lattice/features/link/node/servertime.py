"""The time of the replicas on a node whose own clock may be wrong.

Lines are merged by it, grants are judged by it, and jobs are named by it: what the kernel of a node
says of when a job began is in the node's own time, and Slurm's word is in the servers'.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from lattice.base.clock import Clock

_MOST_KEPT = 10_000


class ServerTime:
    """A clock: the node's, corrected by what the link measures, or measured last."""

    def __init__(self, clock: Clock, ahead_s: Callable[[], float | None]) -> None:
        """`ahead_s`: by how much the node's clock is ahead; None while there is no measurement."""
        self._clock = clock
        self._measured_s = ahead_s
        self._ahead_s: float | None = None
        self._told: dict[float, float] = {}
        self._here: dict[float, float] = {}

    @property
    def ahead_s(self) -> float | None:
        """By how much the node's clock is ahead; None until that was measured once."""
        measured_s = self._measured_s()
        if measured_s is not None:
            self._ahead_s = measured_s
        return self._ahead_s

    def now(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self.ahead_s or 0.0)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def told(self, here_s: float) -> float:
        """A moment of the node's time as servers name it, always the same for the same moment.

        So that it stays the name of a job when the clock is set while the job runs.
        """
        known_s = self._told.get(here_s)
        if known_s is not None:
            return known_s
        ahead_s = self.ahead_s
        if ahead_s is None:
            return here_s
        return self._pair(here_s, here_s - ahead_s)[1]

    def here(self, told_s: float) -> float:
        """A moment that a server named, in the node's time; `told` gives that moment back."""
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
