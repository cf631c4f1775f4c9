"""Between protobuf and what a node measured: batches of samples, and looks at a job.

Both ends of the wire use it. What can't be a measurement raises `BadSamples` or `BadTell`, or is
left out and counted; it never becomes a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError

from lattice.domain.alert import Alert, Phase, Progress, Rule, Severity
from lattice.domain.measured import NOT_MEASURED, JobSnapshot
from lattice.domain.metric import (
    CATALOGUE,
    Absence,
    Kind,
    Labels,
    NotMeasured,
    Provenance,
    Reading,
    Sample,
)
from lattice.domain.metricstore import Point
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.nodelook import NodeAlert, NodeMeasured, NodeOver, NodeSight
from lattice.domain.telemetry import Mode
from lattice.wire.v1 import telemetry_pb2 as pb

NAN = math.nan
_EARLIEST_S, _LATEST_S = 1e9, 1e11
_ANY_MOMENT_S = 2e9
_LATEST_READ_MS = 600_000
_MOST_READINGS = 8192
_LONGEST_WORDS = 1000


class BadSamples(ValueError):
    """Samples that can't be any; the text says why."""


class BadTell(ValueError):
    """Something a node can't have told; the text says why."""


@dataclass(frozen=True, slots=True)
class SeriesColumn:
    """One series at the moments of its job; NaN where it was not measured."""

    metric: str
    labels: Labels
    source: Provenance
    values: Sequence[float]
    late_ms: Sequence[int] = ()
    """By how much each was read after its moment; empty: none was."""

    def points(self, times_ms: Sequence[int]) -> Iterator[Point]:
        """What was measured, each at the moment it was read, in seconds since 1970."""
        late_ms = self.late_ms or (0,) * len(self.values)
        for time_ms, after_ms, value in zip(times_ms, late_ms, self.values, strict=True):
            if value == value:  # noqa: PLR0124 - not NaN
                yield (time_ms + after_ms) / 1000, value


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Samples of one life of one job. Times are the servers'."""

    job_id: int
    started: float
    times_ms: Sequence[int]
    """Strictly rising."""
    series: Sequence[SeriesColumn]

    @property
    def count(self) -> int:
        return sum(_measured(each.values) for each in self.series)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What of a batch can be samples."""

    jobs: tuple[JobColumns, ...]
    lost_total: int
    refused: int = 0
    """Samples that can't be any."""
    reason: str = ""
    """Why, of the first of them."""


def batch_message(jobs: Iterable[JobColumns], lost_total: int) -> pb.SampleBatch:
    batch = pb.SampleBatch(lost_total=lost_total)
    for job in jobs:
        told = batch.jobs.add(job_id=job.job_id, started=job.started)
        told.times_ms.extend(job.times_ms)
        for each in job.series:
            series = told.series.add(metric=each.metric, source=each.source.value)
            _add_labels(series.labels, each.labels)
            series.values.extend(each.values)
            if any(each.late_ms):
                series.late_ms.extend(each.late_ms)
    return batch


def batch_of(message: pb.SampleBatch) -> Unpacked:
    """Never raises: what can't be samples is counted."""
    jobs, refused, reason = [], 0, ""
    for each in message.jobs:
        try:
            job, left_out, why = _job_of(each)
            jobs.append(job)
        except BadSamples as fault:
            left_out, why = sum(_measured(series.values) for series in each.series), str(fault)
        refused += left_out
        reason = reason or why
    return Unpacked(tuple(jobs), message.lost_total, refused, reason)


def _job_of(message: pb.JobSamples) -> tuple[JobColumns, int, str]:
    times_ms = tuple(message.times_ms)
    if not message.job_id or not _EARLIEST_S < message.started < _LATEST_S:
        raise BadSamples("no job that could have begun")
    if not all(_EARLIEST_S < each / 1000 < _LATEST_S for each in times_ms):
        raise BadSamples("a moment at which nothing was measured")
    if any(later <= sooner for sooner, later in pairwise(times_ms)):
        raise BadSamples("moments that are not in order")
    series: dict[tuple[str, Labels, Provenance], SeriesColumn] = {}
    refused, reason = 0, ""
    for each in message.series:
        try:
            column = series_of(each, len(times_ms))
        except BadSamples as fault:
            refused += _measured(each.values)
            reason = reason or str(fault)
            continue
        if (column.metric, column.labels, column.source) in series:
            raise BadSamples(f"a series of {column.metric} that is there twice")
        series[column.metric, column.labels, column.source] = column
    columns = JobColumns(message.job_id, message.started, times_ms, tuple(series.values()))
    return columns, refused, reason


def series_of(message: pb.SampleSeries, moments: int) -> SeriesColumn:
    """Raises `BadSamples`."""
    metric, labels = message.metric, _labels_of(message.labels)
    source, most = _known(metric, message.source, labels)
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


def _known(metric: str, told: str, labels: Labels) -> tuple[Provenance, float]:
    """The source, and the largest value there can be. Raises `BadSamples`."""
    known = _SERIES.get((metric, told, tuple([name for name, _ in labels])))
    # The usual case, apart: this is done for every series of the cluster at every moment.
    if known is not None and all(map(_WORD.fullmatch, [value for _, value in labels])):
        return known
    try:
        # Whatever holds of a sample's metric, source and labels holds of its series.
        source = Provenance(told)
        Sample(metric, 0.0, _ANY_MOMENT_S, source, labels)
    except ValueError as fault:
        raise BadSamples(str(fault)) from None
    return source, CATALOGUE[metric].most


def _labels_of(told: Iterable[pb.SampleLabel]) -> Labels:
    return tuple([(each.name, each.value) for each in told])


def _measured(values: Iterable[float]) -> int:
    return sum(1 for each in values if each == each)  # noqa: PLR0124 - not NaN


class Want(StrEnum):
    """What a server asks a node for."""

    LOOK = "look"
    FOLLOW = "follow"
    BLACK_BOX = "black_box"


@dataclass(frozen=True, slots=True)
class LookAsked:
    """Of which job, and when the attempt that is meant began by the servers' clock."""

    job_id: int
    want: Want
    started: float


@dataclass(frozen=True, slots=True)
class Noted:
    """One entry of a black box."""

    snapshot: JobSnapshot


@dataclass(frozen=True, slots=True)
class BoxEnd:
    """The last of a black box."""


LookNews: TypeAlias = NodeMeasured | NodeAlert | NodeOver | Noted | BoxEnd


def opening_bytes(asked: LookAsked) -> bytes:
    told = pb.LookOpening(job_id=asked.job_id, want=asked.want.value, started=asked.started)
    return told.SerializeToString()


def opening_of(opening: bytes) -> LookAsked:
    """Raises `BadTell`."""
    try:
        told = pb.LookOpening.FromString(opening)
        want = Want(told.want)
    except (DecodeError, ValueError):
        raise BadTell("The question can't be read.") from None
    if not told.job_id or not 0 <= told.started < _LATEST_S:
        raise BadTell("The question names no job.")
    return LookAsked(told.job_id, want, told.started)


def tell_of(payload: bytes, node: str, job_id: int) -> LookNews | None:
    """What a node says of a job; None: it does not know the job. Raises `BadTell`."""
    try:
        message = pb.LookTell.FromString(payload)
    except DecodeError:
        raise BadTell("not a tell") from None
    which = message.WhichOneof("tell")
    if which == "sight":
        return NodeMeasured(_sight_of(message.sight, node, job_id))
    if which == "alert":
        return NodeAlert(node, alert_of(message.alert))
    if which == "noted":
        return Noted(snapshot_of(message.noted, job_id))
    if which == "end":
        return BoxEnd()
    return NodeOver(node) if which == "over" else None


def sight_message(
    began: float,
    before: JobSnapshot | None,
    now: JobSnapshot,
    firing: Iterable[Alert] = (),
    progress: Progress | None = None,
) -> pb.Sight:
    """Of the snapshot before go only counters: the rest is not compared with anything."""
    sight = pb.Sight(now=snapshot_message(began, now), firing=map(alert_message, firing))
    if before is not None:
        counters = tuple(
            each for each in before.samples if CATALOGUE[each.metric].kind is Kind.COUNTER
        )
        older = JobSnapshot(before.identity, before.time, before.resolution_s, counters)
        sight.before.CopyFrom(snapshot_message(began, older))
    if progress is not None:
        sight.progress.CopyFrom(
            pb.ProgressTold(
                output=progress.output,
                processor=progress.processor,
                storage=progress.storage,
                network=progress.network,
            )
        )
    return sight


def _sight_of(message: pb.Sight, node: str, job_id: int) -> NodeSight:
    return NodeSight(
        node=node,
        before=snapshot_of(message.before, job_id) if message.HasField("before") else None,
        now=snapshot_of(message.now, job_id),
        firing=tuple(alert_of(each) for each in message.firing),
        progress=_progress_of(message.progress) if message.HasField("progress") else None,
    )


def snapshot_message(began: float, snapshot: JobSnapshot) -> pb.SnapshotTold:
    """`began`: when the job began on the node, in the servers' time."""
    told = pb.SnapshotTold(began=began, time=snapshot.time, resolution_s=snapshot.resolution_s)
    for each in snapshot.readings:
        reading = told.readings.add(metric=each.metric)
        _add_labels(reading.labels, each.labels)
        if isinstance(each, Sample):
            reading.value, reading.time, reading.source = each.value, each.time, each.source.value
        else:
            reading.reason = each.reason[:_LONGEST_WORDS]
            reading.last_error = each.last_error[:_LONGEST_WORDS]
    return told


def snapshot_of(message: pb.SnapshotTold, job_id: int) -> JobSnapshot:
    """Raises `BadTell`. A metric that is not in the catalogue is left out."""
    if len(message.readings) > _MOST_READINGS:
        raise BadTell("more readings than a job can have")
    if not _is_moment(message.began) or not _is_moment(message.time):
        raise BadTell("no moment at which anything was measured")
    if not 0 < message.resolution_s < _LATEST_S:
        raise BadTell("no interval")
    readings: dict[tuple[str, Labels], Reading] = {}
    for each in message.readings:
        if each.metric in CATALOGUE:
            reading = _reading_of(each)
            if (each.metric, reading.labels) in readings:
                raise BadTell(f"{each.metric} is told twice")
            readings[each.metric, reading.labels] = reading
    identity = JobIdentity("", job_id, 0, message.began)
    return JobSnapshot(identity, message.time, message.resolution_s, tuple(readings.values()))


def _reading_of(message: pb.ReadingTold) -> Reading:
    labels = tuple((each.name, each.value) for each in message.labels)
    if not message.HasField("value"):
        reason = message.reason[:_LONGEST_WORDS] or NOT_MEASURED
        return Absence(message.metric, reason, message.last_error[:_LONGEST_WORDS], labels)
    try:
        source = Provenance(message.source)
        return Sample(message.metric, message.value, message.time, source, labels)
    except (NotMeasured, ValueError) as fault:
        raise BadTell(str(fault)) from None


def alert_message(alert: Alert) -> pb.AlertTold:
    return pb.AlertTold(
        rule=alert.rule.value,
        subject=alert.subject,
        phase=alert.phase.value,
        severity=alert.severity.value,
        value=alert.value,
        bound=alert.bound,
        unit=alert.unit,
        since=alert.since,
        time=alert.time,
        words=alert.words[:_LONGEST_WORDS],
        remedy=alert.remedy[:_LONGEST_WORDS],
    )


def alert_of(message: pb.AlertTold) -> Alert:
    """Raises `BadTell`."""
    value = message.value if message.HasField("value") else None
    bound = message.bound if message.HasField("bound") else None
    if not all(each is None or math.isfinite(each) for each in (value, bound)):
        raise BadTell("an alert whose value is no number")
    if not _is_moment(message.since) or not _is_moment(message.time):
        raise BadTell("an alert of no moment")
    try:
        return Alert(
            rule=Rule(message.rule),
            subject=message.subject[:_LONGEST_WORDS],
            phase=Phase(message.phase),
            severity=Severity(message.severity),
            value=value,
            bound=bound,
            unit=message.unit[:_LONGEST_WORDS],
            since=message.since,
            time=message.time,
            words=message.words[:_LONGEST_WORDS],
            remedy=message.remedy[:_LONGEST_WORDS],
        )
    except ValueError as fault:
        raise BadTell(str(fault)) from None


def _progress_of(message: pb.ProgressTold) -> Progress:
    signs: dict[str, float | None] = {}
    for name in ("output", "processor", "storage", "network"):
        told = getattr(message, name) if message.HasField(name) else None
        if told is not None and not _is_moment(told):
            raise BadTell("progress at no moment")
        signs[name] = told
    return Progress(**signs)


def _is_moment(seconds: float) -> bool:
    return _EARLIEST_S < seconds < _LATEST_S


def _add_labels(to: Any, labels: Labels) -> None:
    for name, value in labels:
        to.add(name=name, value=value)


@dataclass(frozen=True, slots=True)
class ToldJobs:
    """The modes and the GPUs of one node's jobs, by job number."""

    modes: Mapping[int, tuple[Mode, float | None]] = field(default_factory=dict)
    """Those that are not measured as usual, and until when by the servers' clock."""
    usual: Mode = Mode.PROD
    gpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def told_message(told: ToldJobs) -> pb.JobsTold:
    message = pb.JobsTold(usual=told.usual.value)
    for job_id, (mode, until) in sorted(told.modes.items()):
        message.modes.add(job_id=job_id, mode=mode.value, until=until or 0.0)
    for job_id, indices in sorted(told.gpus.items()):
        message.gpus.add(job_id=job_id, indices=indices)
    return message


def told_of(message: pb.JobsTold) -> ToldJobs:
    """Never raises: a mode that is not known here is the usual one."""
    modes = {
        each.job_id: (Mode(each.mode), each.until if each.until > 0 else None)
        for each in message.modes
        if each.mode in _MODES and not math.isnan(each.until)
    }
    usual = Mode(message.usual) if message.usual in _MODES else Mode.PROD
    return ToldJobs(modes, usual, {each.job_id: tuple(each.indices) for each in message.gpus})


_MODES = frozenset(mode.value for mode in Mode)
