"""What a node says of a job right now, and what it is asked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

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
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.nodelook import NodeAlert, NodeMeasured, NodeOver, NodeSight
from lattice.features.telemetry.convert.pieces import LATEST_S, add_labels, is_moment, labels_of
from lattice.wire.v1 import telemetry_pb2 as pb

_MOST_READINGS = 8192
_LONGEST_WORDS = 1000
_LONGEST_LABEL = 128
_SOURCES = {each.value: each for each in Provenance}


class BadTell(ValueError):
    """Something a node can't have told; the text says why."""


class Want(StrEnum):
    """What a server asks a node for."""

    LOOK = "look"
    FOLLOW = "follow"


@dataclass(frozen=True, slots=True)
class LookAsked:
    """Of which job, and when the attempt that is meant began by the servers' clock."""

    job_id: int
    want: Want
    started: float


LookNews: TypeAlias = NodeMeasured | NodeAlert | NodeOver


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
    if not told.job_id or not 0 <= told.started < LATEST_S:
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
    return NodeOver(node) if which == "over" else None


def sight_of(payload: bytes, node: str, job_id: int) -> NodeSight | None:
    """What a node answers to a look; None: it does not know the job. Raises `BadTell`."""
    told = tell_of(payload, node, job_id)
    return told.sight if isinstance(told, NodeMeasured) else None


def sight_message(
    began: float,
    before: JobSnapshot | None,
    now: JobSnapshot,
    firing: Iterable[Alert] = (),
    progress: Progress | None = None,
    judged_since: float | None = None,
) -> pb.Sight:
    """Of the snapshot before go only counters: the rest is not compared with anything."""
    sight = pb.Sight(
        now=snapshot_message(began, now),
        firing=map(alert_message, firing),
        judged_since=judged_since,
    )
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
    judged_since = message.judged_since if message.HasField("judged_since") else None
    if judged_since is not None and not is_moment(judged_since):
        raise BadTell("judged since no moment")
    return NodeSight(
        node=node,
        before=snapshot_of(message.before, job_id) if message.HasField("before") else None,
        now=snapshot_of(message.now, job_id),
        firing=tuple(alert_of(each) for each in message.firing),
        progress=_progress_of(message.progress) if message.HasField("progress") else None,
        judged_since=judged_since,
    )


def snapshot_message(began: float, snapshot: JobSnapshot) -> pb.SnapshotTold:
    """`began`: when the job began on the node, in the servers' time."""
    told = pb.SnapshotTold(began=began, time=snapshot.time, resolution_s=snapshot.resolution_s)
    for each in snapshot.readings:
        reading = told.readings.add(metric=each.metric)
        add_labels(reading.labels, each.labels)
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
    if not is_moment(message.began) or not is_moment(message.time):
        raise BadTell("no moment at which anything was measured")
    if not 0 < message.resolution_s < LATEST_S:
        raise BadTell("no interval")
    readings: dict[tuple[str, Labels], Reading] = {}
    for each in message.readings:
        metric = each.metric
        if metric in CATALOGUE:
            reading = _reading_of(metric, each)
            key = metric, reading.labels
            if key in readings:
                raise BadTell(f"{metric} is told twice")
            readings[key] = reading
    identity = JobIdentity("", job_id, 0, message.began)
    return JobSnapshot(identity, message.time, message.resolution_s, tuple(readings.values()))


def _reading_of(metric: str, message: pb.ReadingTold) -> Reading:
    told = message.labels
    labels = labels_of(told) if told else ()
    if not message.HasField("value"):
        if not _can_lack(metric, labels):
            raise BadTell(f"a label that {metric} does not have")
        reason = message.reason[:_LONGEST_WORDS] or NOT_MEASURED
        return Absence(metric, reason, message.last_error[:_LONGEST_WORDS], labels)
    source = _SOURCES.get(message.source)
    if source is None:
        raise BadTell(f"{metric} has no source")
    try:
        return Sample(metric, message.value, message.time, source, labels)
    except NotMeasured as fault:
        raise BadTell(str(fault)) from None


def _can_lack(metric: str, labels: Labels) -> bool:
    """Whether this can be absent: the metric, or some of its series."""
    names = [name for name, _ in labels]
    own = CATALOGUE[metric].label_names
    return (
        len(set(names)) == len(names)
        and all(name in own for name in names)
        and all(len(value) <= _LONGEST_LABEL and value.isprintable() for _, value in labels)
    )


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
    if not is_moment(message.since) or not is_moment(message.time):
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
        if told is not None and not is_moment(told):
            raise BadTell("progress at no moment")
        signs[name] = told
    return Progress(**signs)
