"""The time of the replicas on a node whose own clock may be wrong: lines are merged by it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from lattice.base.clock import Clock


class ServerTime:
    """A clock: the node's, corrected by what the link measures, or measured last."""

    def __init__(self, clock: Clock, ahead_s: Callable[[], float | None]) -> None:
        """`ahead_s`: by how much the node's clock is ahead; None while there is no measurement."""
        self._clock = clock
        self._ahead_s = ahead_s
        self._ahead = timedelta()

    def now(self) -> datetime:
        measured_s = self._ahead_s()
        if measured_s is not None:
            self._ahead = timedelta(seconds=measured_s)
        return self._clock.now() - self._ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()
