"""Which samples a node may bring: of its own jobs, while they ran, and of none that is sensitive.

A node is trusted only for its measurements. Slurm must have the job on that node at that time. All
is checked again with every message, however the node names its series.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import AttemptLookup, JobAttempt

AHEAD_S = 60.0
"""How far in the future a sample's time may be."""
OLDEST_S = 24 * 3600.0
OUTSIDE_S = 120.0
"""How long before an attempt's start or after its end its processes may be measured."""
OUTSIDE = "of a moment at which the job was not there"
_UNKNOWN_TTL_S = 30.0
_MOST_UNKNOWN = 10_000


class SampleRefused(Exception):
    """The reason, without any names of people."""


@dataclass(slots=True)
class RefusalTally:
    """What is refused of one message, and why the first was."""

    refused: int = 0
    reason: str = ""

    def add(self, count: int, reason: str) -> None:
        if count:
            self.refused += count
            self.reason = self.reason or reason


class SampleGuard:
    """Finds the attempt that a node measured, and when it may have measured it."""

    def __init__(
        self,
        find_attempt: AttemptLookup,
        clock: Clock,
        is_sensitive: Callable[[Allocation], bool],
    ) -> None:
        """Samples of `is_sensitive` allocations are never stored."""
        self._find_attempt = find_attempt
        self._clock = clock
        self._is_sensitive = is_sensitive
        self._unknown: dict[tuple[str, int, float], float] = {}

    async def attempt(self, node: str, job_id: int, started: float) -> JobAttempt:
        """Return the job's attempt on that node. Raises `SampleRefused` and `Unavailable`."""
        key = (node, job_id, started)
        # Do not ask slurmdbd repeatedly about a job that a node made up.
        if self._unknown and self._unknown.get(key, 0.0) > self._clock.monotonic():
            raise SampleRefused(f"job {job_id} did not run there")
        try:
            attempt = await self._find_attempt(*key)
        except NotFound:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[key] = self._clock.monotonic() + _UNKNOWN_TTL_S
            raise SampleRefused(f"job {job_id} did not run there") from None
        if self._is_sensitive(attempt.allocation):
            raise SampleRefused("what is sensitive does not stand in the shared store")
        return attempt

    def moments(self, attempt: JobAttempt) -> tuple[float, float]:
        """Return the earliest and the latest time of a sample of this attempt."""
        now = self._clock.now().timestamp()
        first, last = now - OLDEST_S, now + AHEAD_S
        started, ended = attempt.attempt.started, attempt.attempt.ended
        if started is not None:
            first = max(first, started.timestamp() - OUTSIDE_S)
        if ended is not None:
            last = min(last, ended.timestamp() + OUTSIDE_S)
        return first, last
