"""A snapshot as a row of numbers, to save memory: the buffer holds thousands.

Rows with the same series share their names. A sample that was read well before its time gets a row
at its own time; vendor tools may return cached values.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Labels, Provenance, Sample
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import NAN, JobColumns, SeriesColumn

SeriesKey: TypeAlias = tuple[str, Labels, Provenance]
Layout: TypeAlias = tuple[SeriesKey, ...]

_BEFORE_MS = 500
"""A sample that was read earlier than this gets its own row."""
_MOST_LATE_MS = 65_535
MOST_SAMPLES = 1000
"""Most samples in one row: it must fit in a message."""
_ROW_BYTES = 400
_SAMPLE_BYTES = 10
_MOST_LAYOUTS = 1024


@dataclass(slots=True)
class SampleRow:
    """One job at one time."""

    identity: JobIdentity
    time_ms: int
    layout: Layout
    values: array[float]
    late_ms: array[int]

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return _ROW_BYTES + _SAMPLE_BYTES * len(self.values)


class Layouts:
    """Keeps each layout once."""

    def __init__(self) -> None:
        self._known: dict[Layout, Layout] = {}

    def rows_of(self, snapshot: JobSnapshot, samples: Sequence[Sample]) -> list[SampleRow]:
        """Return the rows of these samples, older ones first."""
        time_ms = round(snapshot.time * 1000)
        timely: list[Sample] = []
        older: list[Sample] = []
        for each in samples:
            (timely if each.time * 1000 >= time_ms - _BEFORE_MS else older).append(each)
        rows = []
        for moment_ms, of_then in groupby(sorted(older, key=_read_ms), key=_read_ms):
            rows.append(self._row(snapshot, moment_ms, list(of_then)))
        return rows + [
            self._row(snapshot, time_ms, timely[begin : begin + MOST_SAMPLES])
            for begin in range(0, len(timely), MOST_SAMPLES)
        ]

    def _row(self, snapshot: JobSnapshot, time_ms: int, samples: Sequence[Sample]) -> SampleRow:
        layout = tuple((each.metric, each.labels, each.source) for each in samples)
        if len(self._known) >= _MOST_LAYOUTS:
            self._known.clear()
        return SampleRow(
            snapshot.identity,
            time_ms,
            self._known.setdefault(layout, layout),
            array("d", (each.value for each in samples)),
            array("H", (_late_ms(each, time_ms) for each in samples)),
        )


def columns_of(rows: Sequence[SampleRow], began: float) -> JobColumns:
    """Convert rows of one run of a job into columns; `began` is by the servers' clock."""
    ordered = sorted(rows, key=lambda row: row.time_ms)
    times_ms = tuple(sorted({row.time_ms for row in ordered}))
    layout = ordered[0].layout
    if len(times_ms) == len(ordered) and all(row.layout is layout for row in ordered):
        values = zip(*(row.values for row in ordered), strict=True)
        late = zip(*(row.late_ms for row in ordered), strict=True)
        series = tuple(
            SeriesColumn(*key, each, late_ms)
            for key, each, late_ms in zip(layout, values, late, strict=True)
        )
    else:
        series = _spread(ordered, {time_ms: place for place, time_ms in enumerate(times_ms)})
    return JobColumns(ordered[0].identity.job_id, began, times_ms, series)


def _spread(rows: Sequence[SampleRow], places: Mapping[int, int]) -> tuple[SeriesColumn, ...]:
    """For rows with different series, or several rows of one time."""
    values: dict[SeriesKey, list[float]] = {}
    late: dict[SeriesKey, list[int]] = {}
    for row in rows:
        place = places[row.time_ms]
        for key, value, late_ms in zip(row.layout, row.values, row.late_ms, strict=True):
            if key not in values:
                values[key], late[key] = [NAN] * len(places), [0] * len(places)
            values[key][place], late[key][place] = value, late_ms
    return tuple(SeriesColumn(*key, each, late[key]) for key, each in values.items())


def _read_ms(sample: Sample) -> int:
    return round(sample.time * 1000)


def _late_ms(sample: Sample, time_ms: int) -> int:
    return max(0, min(_MOST_LATE_MS, _read_ms(sample) - time_ms))
