"""A clock that stands until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

RECORDED = datetime.fromtimestamp(1794702411, UTC)
"""The moment at which the recordings of Slurm were made."""


class ManualClock:
    def __init__(self, start: datetime = RECORDED) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
