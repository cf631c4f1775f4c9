"""Samples on their way to a server: columns of numbers, job by job."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from sys import byteorder
from typing import Any

from lattice.domain.metric import CATALOGUE, Labels, Provenance, Sample
from lattice.domain.metricstore import Point
from lattice.wire.v1 import telemetry_pb2 as pb

LATEST_S = 1e11
_EARLIEST_S = 1e9
NAN = math.nan
_ANY_MOMENT_S = 2e9
_LATEST_READ_MS = 600_000


class BadSamples(ValueError):
    """Samples that can't be valid; the text is the reason."""


@dataclass(frozen=True, slots=True)
class SeriesColumn:
    """One series at the times of its job; NaN where it was not measured."""

    metric: str
    labels: Labels
    source: Provenance
    values: Sequence[float]
    late_ms: Sequence[int] = ()
    """Delay of each reading after its nominal time; empty if there was none."""

    def points(self, times_ms: Sequence[int]) -> Iterator[Point]:
        """Yield the measured values, each with the time of its reading in seconds since 1970."""
        late_ms = self.late_ms or (0,) * len(self.values)
        for time_ms, after_ms, value in zip(times_ms, late_ms, self.values, strict=True):
            if value == value:  # noqa: PLR0124 - not NaN
                yield (time_ms + after_ms) / 1000, value


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Samples of one run of a job. Times are by the servers' clock."""

    job_id: int
    started: float
    times_ms: Sequence[int]
    """Strictly increasing."""
    series: Sequence[SeriesColumn]

    @property
    def count(self) -> int:
        return sum(measured_count(each.values) for each in self.series)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The valid part of a batch."""

    jobs: tuple[JobColumns, ...]
    lost_total: int
    refused: int = 0
    """Number of invalid samples."""
    reason: str = ""
    """The reason for the first of them."""


def is_moment(seconds: float) -> bool:
    """Return True if a sample can be from this time; NaN is no time."""
    return _EARLIEST_S < seconds < LATEST_S


def labels_of(labels: Sequence[pb.SampleLabel]) -> Labels:
    if len(labels) == 1:  # the most frequent case
        only = labels[0]
        return ((only.name, only.value),)
    return tuple([(each.name, each.value) for each in labels])


def add_labels(to: Any, labels: Labels) -> None:
    for name, value in labels:
        to.add(name=name, value=value)


def little_endian(numbers: array[float] | array[int]) -> bytes:
    """Pack numbers as the wire has them."""
    if byteorder == "little":
        return numbers.tobytes()
    swapped = numbers[:]
    swapped.byteswap()
    return swapped.tobytes()


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """How many samples of a batch are stored, and how many are refused for good."""

    stored: int
    refused: int = 0
    reason: str = ""


def batch_message(jobs: Iterable[JobColumns], lost_total: int) -> pb.SampleBatch:
    batch = pb.SampleBatch(lost_total=lost_total)
    for job in jobs:
        message = batch.jobs.add(job_id=job.job_id, started=job.started)
        message.times_ms.extend(job.times_ms)
        for each in job.series:
            series = message.series.add(metric=each.metric, source=each.source.value)
            add_labels(series.labels, each.labels)
            series.values.extend(each.values)
            if any(each.late_ms):
                series.late_ms.extend(each.late_ms)
    return batch


def batch_of(message: pb.SampleBatch) -> Unpacked:
    """Parse a batch. Never raises: invalid samples are counted."""
    jobs, refused, reason = [], 0, ""
    for each in message.jobs:
        try:
            job, left_out, why = _job_of(each)
            jobs.append(job)
        except BadSamples as fault:
            left_out, why = sum(measured_count(series.values) for series in each.series), str(fault)
        refused += left_out
        reason = reason or why
    return Unpacked(tuple(jobs), message.lost_total, refused, reason)


def _job_of(message: pb.JobSamples) -> tuple[JobColumns, int, str]:
    times_ms = tuple(message.times_ms)
    if not message.job_id or not is_moment(message.started):
        raise BadSamples("no job that could have begun")
    if not all(is_moment(each / 1000) for each in times_ms):
        raise BadSamples("a moment at which nothing was measured")
    if any(later <= sooner for sooner, later in pairwise(times_ms)):
        raise BadSamples("moments that are not in order")
    series: dict[tuple[str, Labels, Provenance], SeriesColumn] = {}
    refused, reason = 0, ""
    for each in message.series:
        try:
            column = series_of(each, len(times_ms))
        except BadSamples as fault:
            refused += measured_count(each.values)
            reason = reason or str(fault)
            continue
        if (column.metric, column.labels, column.source) in series:
            raise BadSamples(f"a series of {column.metric} that is there twice")
        series[column.metric, column.labels, column.source] = column
    columns = JobColumns(message.job_id, message.started, times_ms, tuple(series.values()))
    return columns, refused, reason


def series_of(message: pb.SampleSeries, moments: int) -> SeriesColumn:
    """Parse one series. Raises `BadSamples`."""
    metric, labels = message.metric, labels_of(message.labels)
    source, most = known_series(metric, message.source, labels)
    values, late_ms = tuple(message.values), tuple(message.late_ms)
    if len(values) != moments or len(late_ms) not in {0, moments}:
        raise BadSamples("not as many samples as moments")
    for each in values:
        if not 0.0 <= each <= most and each == each:  # noqa: PLR0124 - NaN was not measured
            raise BadSamples(f"a value that {metric} can't have")
    if late_ms and max(late_ms) > _LATEST_READ_MS:
        raise BadSamples("read too long after its moment")
    return SeriesColumn(metric, labels, source, values, late_ms)


_WORD = re.compile(r"[!-~]{1,128}")
_SERIES = {
    (metric.name, source.value, tuple(sorted(metric.label_names))): (source, metric.most)
    for metric in CATALOGUE.values()
    for source in Provenance
    if source is not Provenance.UNAVAILABLE
}


def known_series(metric: str, source_name: str, labels: Labels) -> tuple[Provenance, float]:
    """Return the source and the largest possible value. Raises `BadSamples`."""
    known = _SERIES.get((metric, source_name, tuple([name for name, _ in labels])))
    # A fast path: this runs for every series of the cluster at every sampling time.
    if known is not None and all(map(_WORD.fullmatch, [value for _, value in labels])):
        return known
    try:
        # The rules for a sample's metric, source and labels are those for its series.
        source = Provenance(source_name)
        Sample(metric, 0.0, _ANY_MOMENT_S, source, labels)
    except ValueError as fault:
        raise BadSamples(str(fault)) from None
    return source, CATALOGUE[metric].most


def measured_count(values: Iterable[float]) -> int:
    """Count the values that are not NaN."""
    return sum(1 for each in values if each == each)  # noqa: PLR0124 - not NaN
