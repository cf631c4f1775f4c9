"""Samples written directly to the metric store, if the site trusts its nodes with labels.

Servers send the owner's labels of a job (`stamps`). Its samples then go to the site's vmagent or
store without the servers. Samples of other jobs wait up to 30 s and then go to the servers. Servers
know runs that ended before their labels were sent, and refuse sensitive ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.metricstore import SeriesPoints, StoreSilent, WriteRefused
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import JobColumns, StoredBatch
from lattice.features.telemetry.convert.stamps import points_of, series_points
from lattice.features.telemetry.node.buffer import SampleRow
from lattice.features.telemetry.node.job_settings import KnownStamps
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.features.telemetry.node.sender import SampleSender

PATIENCE_S = 30.0
"""How long a sample waits for the labels of its job."""


class SeriesWriter(Protocol):
    """The write half of the port `MetricStore`."""

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Return when the store has it. Raises `StoreSilent` and `WriteRefused`."""


class WriteRoute:
    """Decides for each row whether it goes directly or to the servers."""

    def __init__(
        self,
        stamps: KnownStamps,
        began: Callable[[JobIdentity], float],
        now: Callable[[], float],
    ) -> None:
        """`began` is when a job began and `now` the time, both by the servers' clock."""
        self._stamps = stamps
        self._began = began
        self._now = now

    def straight(self, row: SampleRow) -> bool:
        identity = row.identity
        return self._stamps.of(identity.job_id, self._began(identity)) is not None

    def over_servers(self, row: SampleRow) -> bool:
        """At once if servers send no labels; otherwise after waiting `PATIENCE_S` for them."""
        if not self._stamps.stamping:
            return True
        return not self.straight(row) and row.time_ms / 1000 <= self._now() - PATIENCE_S


class DirectIntake:
    """Implements the port `SampleSender` for direct writes."""

    def __init__(
        self, node: str, stamps: KnownStamps, writer: SeriesWriter, servers: SampleSender
    ) -> None:
        """`servers` gets only the count of lost samples."""
        self._node = node
        self._stamps = stamps
        self._writer = writer
        self._servers = servers
        self._lost_reported = 0

    async def store(self, outgoing: OutgoingRows) -> StoredBatch:
        """Return when the store has them. Raises `Unavailable`."""
        series = list(self._stamped(outgoing.columns()))
        count = sum(len(each.points) for each in series)
        try:
            await self._writer.write(series)
        except StoreSilent as silence:
            raise Unavailable(
                f"The metric store of telemetry.remote_write takes no samples: {silence}.",
                hint="They are kept and sent again.",
            ) from None
        except WriteRefused as refusal:
            return StoredBatch(0, count, f"the metric store: {refusal}")
        await self._report_lost(outgoing)
        return StoredBatch(count)

    def _stamped(self, jobs: Iterable[JobColumns]) -> Iterator[SeriesPoints]:
        for job in jobs:
            owner_labels = self._labels(job)
            for column in job.series:
                if points := points_of(column, job.times_ms):
                    yield series_points(column, owner_labels, points)

    def _labels(self, job: JobColumns) -> dict[str, str]:
        stamps = self._stamps.of(job.job_id, job.started)
        if stamps is None:
            raise Unavailable(
                f"AttemptLookup job {job.job_id} is, is not known any more.",
                hint="It is sent again.",
            )
        return stamps.on(self._node)

    async def _report_lost(self, outgoing: OutgoingRows) -> None:
        """Report losses to the servers, where operators look. The next batch retries a failure."""
        if outgoing.lost_total == self._lost_reported:
            return
        with suppress(LatticeError):
            await self._servers.store(replace(outgoing, rows=()))
            self._lost_reported = outgoing.lost_total
