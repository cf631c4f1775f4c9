"""When which job is read: pure.

Moments are multiples of the interval since 1970, so that all nodes read at the same ones. What was
missed is not made up for: the newest moment that is past is read late, and the next on time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lattice.domain.nodejobs import JobIdentity

FIRST_S = 0.5
"""So long a job has to settle before it is first read."""
_NEVER = math.inf


@dataclass(slots=True)
class _Life:
    first: float | None
    """When it is read for the first time; None: it was."""
    last: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One job's turn."""

    moment: float
    interval_s: float


class Plan:
    """Of one node."""

    def __init__(self, interval_s: Callable[[int], float]) -> None:
        """`interval_s`: how often a job is read, by its number."""
        self._interval_s = interval_s
        self._lives: dict[JobIdentity, _Life] = {}

    @property
    def lives(self) -> Collection[JobIdentity]:
        return self._lives.keys()

    @property
    def shortest_s(self) -> float:
        """The shortest interval at present."""
        return min((self.interval_s(each) for each in self._lives), default=30.0)

    def interval_s(self, identity: JobIdentity) -> float:
        """How often a job is read at present."""
        return self._interval_s(identity.job_id)

    def appeared(self, identity: JobIdentity, now: float) -> None:
        """It is first read at a whole second, within two."""
        first = float(math.ceil(now + FIRST_S))
        self._lives.setdefault(identity, _Life(first, now))

    def ended(self, identity: JobIdentity) -> None:
        self._lives.pop(identity, None)

    def next(self, now: float) -> float:
        """When something is due; infinite while there is no job."""
        if not self._lives:
            return _NEVER
        return min(self._due(each, life, now) for each, life in self._lives.items())

    def due(self, now: float) -> dict[JobIdentity, Turn]:
        """Whose turn it is; from now on it has had it."""
        turns = {}
        for identity, life in self._lives.items():
            moment = self._due(identity, life, now)
            if moment <= now:
                turns[identity] = Turn(moment, self._interval_s(identity.job_id))
                life.first, life.last = None, moment
        return turns

    def leapt(self) -> None:
        """Time is another: what was last is no more."""
        for life in self._lives.values():
            life.last = 0.0

    def _due(self, identity: JobIdentity, life: _Life, now: float) -> float:
        if life.first is not None:
            return life.first if life.first > now - 1.0 else math.floor(now)
        return _multiple(life.last, now, self._interval_s(identity.job_id))


def _multiple(last: float, now: float, interval_s: float) -> float:
    """The first moment after the last one; of several that are past, the newest."""
    after = (math.floor(last / interval_s) + 1) * interval_s
    return max(after, math.floor(now / interval_s) * interval_s)
