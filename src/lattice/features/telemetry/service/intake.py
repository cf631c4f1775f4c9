"""Samples from nodes: checks them, adds the owner's labels and stores them.

A node is trusted only for its measurements. Slurm must have the job on that node at that time.
Names and labels must be in the catalogue, and the owner's labels are added here from Slurm's data.
Refused samples are counted and logged, never passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lattice.access.journal import RefusalJournal
from lattice.base.clock import Clock
from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import AttemptLookup, JobAttempt
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import SeriesPoints
from lattice.features.telemetry.convert.batches import (
    JobColumns,
    StoredBatch,
    Unpacked,
    measured_count,
)
from lattice.features.telemetry.convert.stamps import points_of, series_points, stamps_of
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.wire.remotewrite import WriteEncoder

AHEAD_S = 60.0
"""How far in the future a sample's time may be."""
OLDEST_S = 24 * 3600.0
OUTSIDE_S = 120.0
"""How long before an attempt's start or after its end its processes may be measured."""
_FROM_NODES = frozenset(Provenance) - {Provenance.SLURM_ACCOUNTING, Provenance.UNAVAILABLE}
_UNKNOWN_TTL_S = 30.0
_MOST_UNKNOWN = 10_000


@dataclass(slots=True)
class IntakeCounts:
    samples_stored_total: int = 0
    samples_refused_total: int = 0
    samples_lost_by_agents_total: int = 0
    """As agents report it; after a reconnect to another server a node is counted again there."""


class _Refused(Exception):
    """The reason, without any names of people."""


@dataclass(slots=True)
class _Tally:
    """What is refused of one batch, and why the first was."""

    refused: int
    reason: str

    def add(self, count: int, reason: str) -> None:
        if count:
            self.refused += count
            self.reason = self.reason or reason


class SampleIntake:
    """Serves agents, on their own listener."""

    def __init__(
        self,
        find_attempt: AttemptLookup,
        writing: SampleWriting,
        clock: Clock,
        journal: RefusalJournal,
        is_sensitive: Callable[[Allocation], bool],
    ) -> None:
        """Samples of `is_sensitive` allocations are never stored."""
        self._find_attempt = find_attempt
        self._writing = writing
        self._clock = clock
        self._journal = journal
        self._is_sensitive = is_sensitive
        self._encoder = WriteEncoder()
        self._unknown: dict[tuple[str, int, float], float] = {}
        self._lost: dict[str, int] = {}
        self.counts = IntakeCounts()

    async def store(self, node: str, batch: Unpacked) -> StoredBatch:
        """Return when the store has all valid samples. On `Unavailable` the node keeps the batch.

        Storing the same batch again adds nothing.
        """
        self._note_lost(node, batch.lost_total)
        tally = _Tally(batch.refused, batch.reason)
        series: list[SeriesPoints] = []
        for job in batch.jobs:
            try:
                attempt = await self._attempt(node, job)
                series.extend(self._stamped(node, attempt, job, tally))
            except _Refused as refusal:
                tally.add(job.count, str(refusal))
        samples = sum(len(each.points) for each in series)
        request = self._encoder.encode(series)
        written = await self._writing.write(request, samples) if samples else StoredBatch(0)
        tally.add(written.refused, written.reason)
        self.counts.samples_stored_total += written.stored
        self.counts.samples_refused_total += tally.refused
        if tally.refused:
            self._journal.refused("StoreSamples", node, f"{tally.refused} samples: {tally.reason}")
        return StoredBatch(written.stored, tally.refused, tally.reason)

    async def _attempt(self, node: str, job: JobColumns) -> JobAttempt:
        key = (node, job.job_id, job.started)
        now = self._clock.monotonic()
        # Do not ask slurmdbd repeatedly about a job that a node made up.
        if self._unknown.get(key, 0.0) > now:
            raise _Refused(f"job {job.job_id} did not run there")
        try:
            attempt = await self._find_attempt(*key)
        except NotFound:
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[key] = now + _UNKNOWN_TTL_S
            raise _Refused(f"job {job.job_id} did not run there") from None
        if self._is_sensitive(attempt.allocation):
            raise _Refused("what is sensitive does not stand in the shared store")
        return attempt

    def _stamped(
        self, node: str, attempt: JobAttempt, job: JobColumns, tally: _Tally
    ) -> Iterator[SeriesPoints]:
        first, last = self._moments(attempt)
        owner_labels = stamps_of(attempt).on(node)
        for column in job.series:
            if column.source not in _FROM_NODES:
                count = measured_count(column.values)
                tally.add(count, f"no node can have it from {column.source.value}")
                continue
            points = points_of(column, job.times_ms)
            if points and not (first <= points[0][0] and points[-1][0] <= last):
                inside = tuple(each for each in points if first <= each[0] <= last)
                tally.add(len(points) - len(inside), "of a moment at which the job was not there")
                points = inside
            if points:
                yield series_points(column, owner_labels, points)

    def _moments(self, attempt: JobAttempt) -> tuple[float, float]:
        """Return the earliest and the latest time of a sample of this attempt."""
        now = self._clock.now().timestamp()
        first, last = now - OLDEST_S, now + AHEAD_S
        started, ended = attempt.attempt.started, attempt.attempt.ended
        if started is not None:
            first = max(first, started.timestamp() - OUTSIDE_S)
        if ended is not None:
            last = min(last, ended.timestamp() + OUTSIDE_S)
        return first, last

    def _note_lost(self, node: str, total: int) -> None:
        before = self._lost.get(node, 0)
        self._lost[node] = total
        self.counts.samples_lost_by_agents_total += total - before if total >= before else total
