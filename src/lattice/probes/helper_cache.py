"""One request to the root helper for all probes of one reading.

The answer is valid for half a second and for the same jobs; so is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice.base.clock import Clock
from lattice.domain.counters import (
    IO,
    LATENCY,
    NETWORK,
    CounterAnswer,
    CounterLine,
    CountersUnavailable,
)
from lattice.domain.nodejobs import JobIdentity, NodeJob

_GOOD_FOR_S = 0.5
_WANTED = (IO, NETWORK, LATENCY)
NO_HELPER = "lattice-helper is not there"


class HelperReadings:
    """Shared by the probes of one thread. `line` is None without a helper."""

    def __init__(self, line: CounterLine | None, clock: Clock) -> None:
        self._line = line
        self._clock = clock
        self._answer: CounterAnswer | CountersUnavailable = CountersUnavailable(NO_HELPER)
        self._of: tuple[int, ...] | None = None
        self._until_s = 0.0

    def at(self, jobs: Sequence[NodeJob]) -> CounterAnswer:
        """The counters of these jobs. Raises `CountersUnavailable`."""
        if self._line is None:
            raise CountersUnavailable(NO_HELPER)
        numbers = tuple(dict.fromkeys(job.id for job in jobs if job.id > 0))
        now_s = self._clock.monotonic()
        if numbers != self._of or now_s >= self._until_s:
            self._of, self._until_s = numbers, now_s + _GOOD_FOR_S
            try:
                self._answer = self._line.ask(_WANTED, numbers) if numbers else CounterAnswer()
            except CountersUnavailable as error:
                self._answer = error
        if isinstance(self._answer, CountersUnavailable):
            raise self._answer
        return self._answer


def newest_attempts(jobs: Sequence[NodeJob]) -> frozenset[JobIdentity]:
    """The newest of jobs with the same number: a request by number means that one."""
    newest: dict[int, NodeJob] = {}
    for job in jobs:
        other = newest.get(job.id)
        if other is None or other.identity.started < job.identity.started:
            newest[job.id] = job
    return frozenset(job.identity for job in newest.values())
