"""When each job is sampled. Pure.

Sampling times are multiples of the interval since 1970, so that all nodes use the same ones. Missed
times are not made up for: the newest past one is read late, and the next on time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lattice.domain.nodejobs import JobIdentity

FIRST_S = 0.5
"""How long a job settles before it is first read."""
_NEVER = math.inf


@dataclass(slots=True)
class _Schedule:
    first: float | None
    """The time of its first reading; None after it."""
    last: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The sampling time of one job."""

    moment: float
    interval_s: float


class Plan:
    """The plan of one node."""

    def __init__(self, interval_s: Callable[[int], float]) -> None:
        """`interval_s` returns the sampling interval of a job number."""
        self._interval_s = interval_s
        self._schedules: dict[JobIdentity, _Schedule] = {}

    @property
    def jobs(self) -> Collection[JobIdentity]:
        return self._schedules.keys()

    @property
    def shortest_s(self) -> float:
        """The shortest interval at present."""
        return min((self.interval_s(each) for each in self._schedules), default=30.0)

    def interval_s(self, identity: JobIdentity) -> float:
        return self._interval_s(identity.job_id)

    def appeared(self, identity: JobIdentity, now: float) -> None:
        """Add a job. Its first reading is at a whole second, within two seconds."""
        first = float(math.ceil(now + FIRST_S))
        self._schedules.setdefault(identity, _Schedule(first, now))

    def ended(self, identity: JobIdentity) -> None:
        self._schedules.pop(identity, None)

    def next(self, now: float) -> float:
        """Return the next sampling time; infinite without a job."""
        if not self._schedules:
            return _NEVER
        return min(self._due(each, schedule, now) for each, schedule in self._schedules.items())

    def due(self, now: float) -> dict[JobIdentity, Turn]:
        """Return the jobs that are due, and mark them as read."""
        turns = {}
        for identity, schedule in self._schedules.items():
            moment = self._due(identity, schedule, now)
            if moment <= now:
                turns[identity] = Turn(moment, self._interval_s(identity.job_id))
                schedule.first, schedule.last = None, moment
        return turns

    def leapt(self) -> None:
        """Forget the last readings after a step of the clock."""
        for schedule in self._schedules.values():
            schedule.last = 0.0

    def _due(self, identity: JobIdentity, schedule: _Schedule, now: float) -> float:
        if schedule.first is not None:
            return schedule.first if schedule.first > now - 1.0 else math.floor(now)
        return _multiple(schedule.last, now, self._interval_s(identity.job_id))


def _multiple(last: float, now: float, interval_s: float) -> float:
    """Return the first time after the last one; of several past ones, the newest."""
    after = (math.floor(last / interval_s) + 1) * interval_s
    return max(after, math.floor(now / interval_s) * interval_s)
