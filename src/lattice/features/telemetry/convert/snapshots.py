"""A node's current snapshot of a job, and the request for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeAlias

from google.protobuf.message import DecodeError

from lattice.domain.alert import Alert, AlertRule, Phase, Progress, Severity
from lattice.domain.measured import NOT_MEASURED, JobSnapshot
from lattice.domain.metric import (
    CATALOGUE,
    Absence,
    Labels,
    MetricKind,
    MetricReading,
    NotMeasured,
    Provenance,
    Sample,
)
from lattice.domain.node_snapshot import NodeAlert, NodeMeasured, NodeOver, NodeSnapshot
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import LATEST_S, add_labels, is_moment, labels_of
from lattice.wire.v1 import telemetry_pb2 as pb

MOST_READINGS = 8192
LONGEST_TEXT = 1000
ALERTS_BEAT_S = 30.0
"""How often a node that sends only alerts shows that it still measures."""
_LONGEST_LABEL = 128
_SOURCES = {each.value: each for each in Provenance}


class BadSnapshot(ValueError):
    """A message that a node can't have sent; the text is the reason."""


class Want(StrEnum):
    """What a server requests from a node."""

    ONCE = "look"
    FOLLOW = "follow"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The job, and the start of the attempt by the servers' clock."""

    job_id: int
    want: Want
    started: float
    rows: bool = False
    """The server reads rows."""
    alerts_only: bool = False


AgentNews: TypeAlias = NodeMeasured | NodeAlert | NodeOver


def opening_bytes(asked: SnapshotRequest) -> bytes:
    message = pb.LookOpening(
        job_id=asked.job_id,
        want=asked.want.value,
        started=asked.started,
        rows=asked.rows,
        alerts_only=asked.alerts_only,
    )
    return message.SerializeToString()


def opening_of(opening: bytes) -> SnapshotRequest:
    """Parse a request. Raises `BadSnapshot`."""
    try:
        message = pb.LookOpening.FromString(opening)
        want = Want(message.want)
    except (DecodeError, ValueError):
        raise BadSnapshot("The question can't be read.") from None
    if not message.job_id or not 0 <= message.started < LATEST_S:
        raise BadSnapshot("The question names no job.")
    return SnapshotRequest(message.job_id, want, message.started, message.rows, message.alerts_only)


def news_of(payload: bytes, node: str, job_id: int) -> AgentNews | None:
    """Parse a node's message; None if the node does not have the job. Raises `BadSnapshot`."""
    try:
        message = pb.LookTell.FromString(payload)
    except DecodeError:
        raise BadSnapshot("not a tell") from None
    return news_in(message, node, job_id)


def news_in(message: pb.LookTell, node: str, job_id: int) -> AgentNews | None:
    """As `news_of`, of a parsed message."""
    which = message.WhichOneof("tell")
    if which == "sight":
        return NodeMeasured(_node_snapshot(message.sight, node, job_id))
    if which == "alert":
        return NodeAlert(node, alert_of(message.alert))
    return NodeOver(node) if which == "over" else None


def node_snapshot_of(payload: bytes, node: str, job_id: int) -> NodeSnapshot | None:
    """Parse the answer to a look; None without a snapshot. Raises `BadSnapshot`."""
    news = news_of(payload, node, job_id)
    return news.snapshot if isinstance(news, NodeMeasured) else None


def node_snapshot_message(
    began: float,
    before: JobSnapshot | None,
    now: JobSnapshot,
    firing: Iterable[Alert] = (),
    progress: Progress | None = None,
    judged_since: float | None = None,
) -> pb.Sight:
    """Build a message. From the snapshot before only counters are sent, for rates."""
    message = pb.Sight(
        now=snapshot_message(began, now),
        firing=map(alert_message, firing),
        judged_since=judged_since,
    )
    if before is not None:
        counters = tuple(
            each for each in before.samples if CATALOGUE[each.metric].kind is MetricKind.COUNTER
        )
        older = JobSnapshot(before.identity, before.time, before.resolution_s, counters)
        message.before.CopyFrom(snapshot_message(began, older))
    if progress is not None:
        message.progress.CopyFrom(pb.ProgressTold(**asdict(progress)))
    return message


def _node_snapshot(message: pb.Sight, node: str, job_id: int) -> NodeSnapshot:
    return NodeSnapshot(
        node=node,
        before=snapshot_of(message.before, job_id) if message.HasField("before") else None,
        now=snapshot_of(message.now, job_id),
        firing=tuple(alert_of(each) for each in message.firing),
        progress=progress_of(message.progress) if message.HasField("progress") else None,
        judged_since=judged_since_of(message),
    )


def judged_since_of(message: pb.Sight | pb.SightRow) -> float | None:
    """Since when the node judges. Raises `BadSnapshot`."""
    judged_since = message.judged_since if message.HasField("judged_since") else None
    if judged_since is not None and not is_moment(judged_since):
        raise BadSnapshot("judged since no moment")
    return judged_since


def snapshot_message(began: float, snapshot: JobSnapshot) -> pb.SnapshotTold:
    """Build a message. `began` is when the job began on the node, by the servers' clock."""
    message = pb.SnapshotTold(began=began, time=snapshot.time, resolution_s=snapshot.resolution_s)
    for each in snapshot.readings:
        reading = message.readings.add(metric=each.metric)
        add_labels(reading.labels, each.labels)
        if isinstance(each, Sample):
            reading.value, reading.time, reading.source = each.value, each.time, each.source.value
        else:
            reading.reason = each.reason[:LONGEST_TEXT]
            reading.last_error = each.last_error[:LONGEST_TEXT]
    return message


def snapshot_of(message: pb.SnapshotTold, job_id: int) -> JobSnapshot:
    """Parse a snapshot and leave unknown metrics out. Raises `BadSnapshot`."""
    if len(message.readings) > MOST_READINGS:
        raise BadSnapshot("more readings than a job can have")
    if not is_moment(message.began) or not is_moment(message.time):
        raise BadSnapshot("no moment at which anything was measured")
    resolution_s = interval_of(message.resolution_s)
    readings: dict[tuple[str, Labels], MetricReading] = {}
    for each in message.readings:
        metric = each.metric
        if metric in CATALOGUE:
            reading = _reading_of(metric, each)
            key = metric, reading.labels
            if key in readings:
                raise BadSnapshot(f"{metric} is told twice")
            readings[key] = reading
    identity = JobIdentity("", job_id, 0, message.began)
    try:
        return JobSnapshot(identity, message.time, resolution_s, tuple(readings.values()))
    except NotMeasured as fault:
        raise BadSnapshot(str(fault)) from None


def interval_of(resolution_s: float) -> float:
    """Check an interval. Raises `BadSnapshot`."""
    if not 0 < resolution_s < LATEST_S:
        raise BadSnapshot("no interval")
    return resolution_s


def _reading_of(metric: str, message: pb.ReadingTold) -> MetricReading:
    if not message.HasField("value"):
        return absence_of(message)
    given = message.labels
    labels = labels_of(given) if given else ()
    source = _SOURCES.get(message.source)
    if source is None:
        raise BadSnapshot(f"{metric} has no source")
    try:
        return Sample(metric, message.value, message.time, source, labels)
    except NotMeasured as fault:
        raise BadSnapshot(str(fault)) from None


def absence_of(message: pb.ReadingTold) -> Absence:
    """Parse why a known metric has no value. Raises `BadSnapshot`."""
    metric, labels = message.metric, labels_of(message.labels)
    if not _can_lack(metric, labels):
        raise BadSnapshot(f"a label that {metric} does not have")
    reason = message.reason[:LONGEST_TEXT] or NOT_MEASURED
    return Absence(metric, reason, message.last_error[:LONGEST_TEXT], labels)


def _can_lack(metric: str, labels: Labels) -> bool:
    """Return True if the metric, or some of its series, can be absent."""
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
        words=alert.text[:LONGEST_TEXT],
        remedy=alert.remedy[:LONGEST_TEXT],
    )


def alert_of(message: pb.AlertTold) -> Alert:
    """Parse an alert. Raises `BadSnapshot`."""
    value = message.value if message.HasField("value") else None
    bound = message.bound if message.HasField("bound") else None
    if not all(each is None or math.isfinite(each) for each in (value, bound)):
        raise BadSnapshot("an alert whose value is no number")
    if not is_moment(message.since) or not is_moment(message.time):
        raise BadSnapshot("an alert of no moment")
    try:
        return Alert(
            rule=AlertRule(message.rule),
            subject=message.subject[:LONGEST_TEXT],
            phase=Phase(message.phase),
            severity=Severity(message.severity),
            value=value,
            bound=bound,
            unit=message.unit[:LONGEST_TEXT],
            since=message.since,
            time=message.time,
            text=message.words[:LONGEST_TEXT],
            remedy=message.remedy[:LONGEST_TEXT],
        )
    except ValueError as fault:
        raise BadSnapshot(str(fault)) from None


def progress_of(message: pb.ProgressTold) -> Progress:
    signs: dict[str, float | None] = {}
    for name in ("output", "processor", "storage", "network"):
        time = getattr(message, name) if message.HasField(name) else None
        if time is not None and not is_moment(time):
            raise BadSnapshot("progress at no moment")
        signs[name] = time
    return Progress(**signs)
