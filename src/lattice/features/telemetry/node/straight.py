"""Samples straight to the metric store, where the site trusts its nodes with the names on them.

Servers tell whose a job is (`stamps`); its samples then go to the site's vmagent or store, not over
the servers. Those of a job that is not known so wait a little, and then go over the servers after
all: they know runs that were over before anybody could be told, and what is sensitive they refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from lattice.base.errors import LatticeError, Unavailable
from lattice.domain.metricstore import SeriesPoints, StoreSilent, WriteRefused
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import JobColumns, Unpacked, batch_of
from lattice.features.telemetry.convert.stamps import points_of, series_points
from lattice.features.telemetry.node.rows import Row
from lattice.features.telemetry.node.sending import SampleIntake, Stored
from lattice.features.telemetry.node.stamps import KnownStamps
from lattice.wire.v1 import telemetry_pb2 as pb

PATIENCE_S = 30.0
"""So long a sample waits until it is told whose it is."""


class SeriesWriter(Protocol):
    """The writing half of the port `MetricStore`."""

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Taken when this returns. Raises `StoreSilent` and `WriteRefused`."""


class Ways:
    """Which way a row goes."""

    def __init__(
        self,
        stamps: KnownStamps,
        began: Callable[[JobIdentity], float],
        now: Callable[[], float],
    ) -> None:
        """`began`: when a job began, as servers name it; `now` is the servers' time."""
        self._stamps = stamps
        self._began = began
        self._now = now

    def straight(self, row: Row) -> bool:
        identity = row.identity
        return self._stamps.of(identity.job_id, self._began(identity)) is not None

    def over_servers(self, row: Row) -> bool:
        """At once where servers tell no names; else what has waited for one in vain."""
        if not self._stamps.told:
            return True
        return not self.straight(row) and row.time_ms / 1000 <= self._now() - PATIENCE_S


class StraightIntake:
    """The port `SampleIntake` of what goes straight."""

    def __init__(
        self, node: str, stamps: KnownStamps, writer: SeriesWriter, servers: SampleIntake
    ) -> None:
        """`servers` hear only of what was lost."""
        self._node = node
        self._stamps = stamps
        self._writer = writer
        self._servers = servers
        self._lost_told = 0

    async def store(self, batch: pb.SampleBatch) -> Stored:
        """Returns when the store has it. Raises `Unavailable`."""
        unpacked = batch_of(batch)
        series = list(self._stamped(unpacked))
        count = sum(len(each.points) for each in series)
        try:
            await self._writer.write(series)
        except StoreSilent as silence:
            raise Unavailable(
                f"The metric store of telemetry.remote_write takes no samples: {silence}.",
                hint="They are kept and sent again.",
            ) from None
        except WriteRefused as refusal:
            return Stored(0, count + unpacked.refused, f"the metric store: {refusal}")
        await self._tell_lost(unpacked.lost_total)
        return Stored(count, unpacked.refused, unpacked.reason)

    def _stamped(self, batch: Unpacked) -> Iterator[SeriesPoints]:
        for job in batch.jobs:
            whose = self._labels(job)
            for column in job.series:
                if points := points_of(column, job.times_ms):
                    yield series_points(column, whose, points)

    def _labels(self, job: JobColumns) -> dict[str, str]:
        stamps = self._stamps.of(job.job_id, job.started)
        if stamps is None:
            raise Unavailable(
                f"Whose job {job.job_id} is, is not known any more.", hint="It is sent again."
            )
        return stamps.on(self._node)

    async def _tell_lost(self, lost_total: int) -> None:
        """Losses are counted where operators look; the next batch tells again if this fails."""
        if lost_total == self._lost_told:
            return
        with suppress(LatticeError):
            await self._servers.store(pb.SampleBatch(lost_total=lost_total))
            self._lost_told = lost_total
