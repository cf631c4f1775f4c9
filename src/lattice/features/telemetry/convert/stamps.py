"""The owner's labels, and the series as the metric store gets it.

The labels come from Slurm, which servers can read. If a site lets its nodes write to the store, the
servers send a node the labels of its own jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lattice.domain.metric import PREFIX, Labels, Provenance
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.features.telemetry.convert.batches import SeriesColumn

if TYPE_CHECKING:
    from lattice.domain.attempts import JobAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """The owner's labels of one attempt of an allocation."""

    alloc: str
    attempt: str
    project: str
    tenant: str
    user: str
    vcluster: str

    def on(self, node: str) -> dict[str, str]:
        """Return the labels for a measurement of this node."""
        return {**asdict(self), "node": node}


def stamps_of(attempt: JobAttempt) -> Stamps:
    """Build the labels from Slurm's data."""
    allocation = attempt.allocation
    return Stamps(
        alloc=allocation.id,
        attempt=str(attempt.attempt.number),
        project=allocation.account,
        tenant=allocation.tenant,
        user=allocation.user,
        vcluster=allocation.vcluster or "",
    )


def series_labels(
    metric: str, labels: Labels, source: Provenance, owner_labels: Mapping[str, str]
) -> dict[str, str]:
    """All labels of a series. `owner_labels` comes from `Stamps.on` and overrides other labels."""
    own = {"__name__": PREFIX + metric, **dict(labels)}
    return {**own, **owner_labels, "source": source.value}


def series_points(
    column: SeriesColumn, owner_labels: Mapping[str, str], points: tuple[Point, ...]
) -> SeriesPoints:
    """Build a series with its labels as `series_labels` has them."""
    labels = series_labels(column.metric, column.labels, column.source, owner_labels)
    return SeriesPoints(labels, points)


def points_of(column: SeriesColumn, times_ms: Sequence[int]) -> tuple[Point, ...]:
    """Return the measured points, oldest first."""
    if len(times_ms) > 1 or column.late_ms:
        return tuple(column.points(times_ms))
    # A fast path: this runs for every series of the cluster at every sampling time.
    return tuple(
        [
            (time_ms / 1000, value)
            for time_ms, value in zip(times_ms, column.values, strict=True)
            if value == value  # noqa: PLR0124 - not NaN
        ]
    )
