"""Snapshots of one job as rows of numbers under the same names. Pure.

A server follows thousands of nodes and shows few of their metrics. So a row keeps its numbers as
they came, and makes samples only of the metrics that somebody asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, Labels, MetricReading, Provenance, Sample
from lattice.domain.nodejobs import JobIdentity


@dataclass(frozen=True, slots=True)
class NamedSeries:
    """A measured series of a layout."""

    metric: str
    labels: Labels
    source: Provenance
    index: int
    """Of its number in a row."""


class SnapshotLayout:
    """What is measured in many snapshots, and what can't be."""

    def __init__(self, readings: Iterable[NamedSeries | Absence]) -> None:
        self.readings = tuple(readings)
        self._series: dict[str, list[NamedSeries]] = {}
        self._absences: dict[str, Absence] = {}
        for each in self.readings:
            if isinstance(each, Absence):
                self._absences.setdefault(each.metric, each)
            else:
                self._series.setdefault(each.metric, []).append(each)

    def of(self, metric: str) -> Sequence[NamedSeries]:
        return self._series.get(metric, ())

    def absence(self, metric: str) -> Absence | None:
        return self._absences.get(metric)


class RowSnapshot(JobSnapshot):
    """A snapshot that makes its samples when they are asked for."""

    __slots__ = ("_layout", "_made", "_times", "_values")

    _layout: SnapshotLayout
    _values: Sequence[float]
    _times: Sequence[float]
    _made: dict[str, tuple[Sample, ...]]

    def __init__(
        self,
        identity: JobIdentity,
        time: float,
        resolution_s: float,
        layout: SnapshotLayout,
        values: Sequence[float],
        times: Sequence[float],
    ) -> None:
        """The numbers are valid for the layout; `times` are those of their reading."""
        for name, value in (
            ("identity", identity),
            ("time", time),
            ("resolution_s", resolution_s),
            ("_layout", layout),
            ("_values", values),
            ("_times", times),
            ("_made", {}),
        ):
            object.__setattr__(self, name, value)

    @property
    def readings(self) -> tuple[MetricReading, ...]:
        return tuple(
            each if isinstance(each, Absence) else self._sample(each)
            for each in self._layout.readings
        )

    def of(self, metric: str) -> tuple[Sample, ...]:
        made = self._made.get(metric)
        if made is None:
            made = self._made[metric] = tuple(map(self._sample, self._layout.of(metric)))
        return made

    def absence(self, metric: str) -> Absence | None:
        return self._layout.absence(metric)

    def _sample(self, series: NamedSeries) -> Sample:
        index = series.index
        return Sample(
            series.metric, self._values[index], self._times[index], series.source, series.labels
        )
