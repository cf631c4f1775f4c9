"""Samples from nodes: checks them, adds the owner's labels and stores them.

`SampleGuard` decides what a node may bring. Names and labels must be in the catalogue, and the
owner's labels are added here from Slurm's data. Refused samples are counted and logged, never
passed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lattice.access.journal import RefusalJournal
from lattice.domain.attempts import JobAttempt
from lattice.domain.metricstore import SeriesPoints
from lattice.features.telemetry.convert.batches import (
    JobColumns,
    StoredBatch,
    Unpacked,
    measured_count,
)
from lattice.features.telemetry.convert.rows import FROM_NODES
from lattice.features.telemetry.convert.stamps import points_of, series_points, stamps_of
from lattice.features.telemetry.service.node_series import NodeSeries
from lattice.features.telemetry.service.sample_guard import (
    OUTSIDE,
    RefusalTally,
    SampleGuard,
    SampleRefused,
)
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.wire.remotewrite import WriteEncoder
from lattice.wire.v1 import telemetry_pb2 as pb


@dataclass(slots=True)
class IntakeCounts:
    samples_stored_total: int = 0
    samples_refused_total: int = 0
    samples_lost_by_agents_total: int = 0
    """As agents report it; after a reconnect to another server a node is counted again there."""


class SampleIntake:
    """Serves agents, on their own listener."""

    def __init__(self, guard: SampleGuard, writing: SampleWriting, journal: RefusalJournal) -> None:
        self._guard = guard
        self._writing = writing
        self._journal = journal
        self._encoder = WriteEncoder()
        self._lost: dict[str, int] = {}
        self.counts = IntakeCounts()

    async def store(self, node: str, batch: Unpacked) -> StoredBatch:
        """Return when the store has all valid samples. On `Unavailable` the node keeps the batch.

        Storing the same batch again adds nothing.
        """
        self._note_lost(node, batch.lost_total)
        tally = RefusalTally(batch.refused, batch.reason)
        series: list[SeriesPoints] = []
        for job in batch.jobs:
            try:
                attempt = await self._guard.attempt(node, job.job_id, job.started)
                series.extend(self._stamped(node, attempt, job, tally))
            except SampleRefused as refusal:
                tally.add(job.count, str(refusal))
        samples = sum(len(each.points) for each in series)
        return await self._written(
            "StoreSamples", node, self._encoder.encode(series), samples, tally
        )

    def series_of(self, node: str) -> NodeSeries:
        """The series that a node declares on a stream; none at first."""
        return NodeSeries(node, self._guard, self._encoder)

    async def store_rows(self, series: NodeSeries, message: pb.SampleRows) -> StoredBatch:
        """As `store`, of the rows of a node whose series have been declared."""
        self._note_lost(series.node, message.lost_total)
        tally = RefusalTally()
        request, samples = await series.encoded(message, tally)
        return await self._written("StreamSamples", series.node, request, samples, tally)

    async def _written(
        self, rpc: str, node: str, request: bytes, samples: int, tally: RefusalTally
    ) -> StoredBatch:
        written = await self._writing.write(request, samples) if samples else StoredBatch(0)
        tally.add(written.refused, written.reason)
        self.counts.samples_stored_total += written.stored
        self.counts.samples_refused_total += tally.refused
        if tally.refused:
            self._journal.refused(rpc, node, f"{tally.refused} samples: {tally.reason}")
        return StoredBatch(written.stored, tally.refused, tally.reason)

    def _stamped(
        self, node: str, attempt: JobAttempt, job: JobColumns, tally: RefusalTally
    ) -> Iterator[SeriesPoints]:
        first, last = self._guard.moments(attempt)
        owner_labels = stamps_of(attempt).on(node)
        for column in job.series:
            if column.source not in FROM_NODES:
                count = measured_count(column.values)
                tally.add(count, f"no node can have it from {column.source.value}")
                continue
            points = points_of(column, job.times_ms)
            if points and not (first <= points[0][0] and points[-1][0] <= last):
                inside = tuple(each for each in points if first <= each[0] <= last)
                tally.add(len(points) - len(inside), OUTSIDE)
                points = inside
            if points:
                yield series_points(column, owner_labels, points)

    def _note_lost(self, node: str, total: int) -> None:
        before = self._lost.get(node, 0)
        self._lost[node] = total
        self.counts.samples_lost_by_agents_total += total - before if total >= before else total
