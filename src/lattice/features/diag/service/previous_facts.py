"""Facts of earlier looks, for rates: few, and not for long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from lattice.base.clock import Clock
from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts

MOST_NODES = 2000
_KEPT_S, _YOUNGEST_S = 900.0, 5.0
_Key = tuple[str, int]


class PreviousFacts:
    """The last two looks of each attempt. Without one, rates are reported as too early."""

    def __init__(self, clock: Clock, *, most_nodes: int = MOST_NODES) -> None:
        self._clock = clock
        self._most = most_nodes
        self._kept: OrderedDict[_Key, list[tuple[float, Mapping[str, NodeFacts]]]] = OrderedDict()

    def of(self, job: JobAttempt) -> Mapping[str, NodeFacts]:
        """Return the newest facts that are old enough for a rate, and not too old."""
        now_s = self._clock.monotonic()
        for taken_s, facts in reversed(self._kept.get(_key(job), [])):
            if _YOUNGEST_S <= now_s - taken_s <= _KEPT_S:
                return facts
        return {}

    def keep(self, job: JobAttempt, facts: Mapping[str, NodeFacts]) -> None:
        if not facts:
            return
        now_s = self._clock.monotonic()
        looks = self._kept.pop(_key(job), [])
        if looks and now_s - looks[-1][0] < _YOUNGEST_S:
            # Keep the earlier look: two looks this close make no rate.
            self._kept[_key(job)] = looks
            return
        self._kept[_key(job)] = [*looks[-1:], (now_s, facts)]
        while self._nodes() > self._most and len(self._kept) > 1:
            self._kept.popitem(last=False)

    def _nodes(self) -> int:
        return sum(len(facts) for looks in self._kept.values() for _, facts in looks)


def _key(job: JobAttempt) -> _Key:
    return job.allocation.ref, job.attempt.number
