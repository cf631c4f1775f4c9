"""Whose a series is, and the series as the metric store gets it.

The labels are Slurm's word, which servers have. Where a site lets its nodes write to the store
themselves, the same words are told to a node for its own jobs, and put on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.features.telemetry.convert.batches import SeriesColumn

STAMPED = ("alloc", "attempt", "node", "project", "tenant", "user", "vcluster", "source")
"""What is stamped on every series; no label of the catalogue is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Of one attempt of an allocation."""

    alloc: str
    attempt: str
    project: str
    tenant: str
    user: str
    vcluster: str

    def on(self, node: str) -> dict[str, str]:
        """As labels of what this node measured."""
        return {
            "alloc": self.alloc,
            "attempt": self.attempt,
            "node": node,
            "project": self.project,
            "tenant": self.tenant,
            "user": self.user,
            "vcluster": self.vcluster,
        }


def stamps_of(attempt: JobAttempt) -> Stamps:
    """Slurm's word."""
    allocation = attempt.allocation
    return Stamps(
        alloc=allocation.id,
        attempt=str(attempt.attempt.number),
        project=allocation.account,
        tenant=allocation.tenant,
        user=allocation.user,
        vcluster=allocation.vcluster or "",
    )


def series_points(
    column: SeriesColumn, whose: dict[str, str], points: tuple[Point, ...]
) -> SeriesPoints:
    """`whose`: from `Stamps.on`; it wins over whatever else a label says."""
    labels = {"__name__": PREFIX + column.metric, **dict(column.labels), **whose}
    labels["source"] = column.source.value
    return SeriesPoints(labels, points)


def points_of(column: SeriesColumn, times_ms: Sequence[int]) -> tuple[Point, ...]:
    """What was measured, oldest first."""
    if len(times_ms) > 1 or column.late_ms:
        return tuple(column.points(times_ms))
    # The usual case, apart: this is done for every series of the cluster at every moment.
    return tuple(
        [
            (time_ms / 1000, value)
            for time_ms, value in zip(times_ms, column.values, strict=True)
            if value == value  # noqa: PLR0124 - not NaN
        ]
    )
