"""A node's snapshots on one stream: the first as a sight, the next as rows under its names.

Both ends of a stream have every message once and in order, over all its connections. So the newest
snapshot of one end is that of the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from struct import Struct
from typing import TypeAlias

from google.protobuf.message import DecodeError

from lattice.domain.alert import Alert, Progress
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import CATALOGUE, Absence, Labels, Provenance, Sample
from lattice.domain.node_snapshot import NodeMeasured, NodeSnapshot
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.snapshot_row import NamedSeries, RowSnapshot, SnapshotLayout
from lattice.features.telemetry.convert.batches import (
    BadSamples,
    add_labels,
    is_moment,
    known_series,
    labels_of,
    little_endian,
)
from lattice.features.telemetry.convert.snapshots import (
    LONGEST_TEXT,
    MOST_READINGS,
    AgentNews,
    BadSnapshot,
    absence_of,
    alert_message,
    alert_of,
    interval_of,
    judged_since_of,
    news_in,
    progress_of,
)
from lattice.wire.v1 import telemetry_pb2 as pb

_Name: TypeAlias = tuple[str, Labels, Provenance] | Absence


class SnapshotRows:
    """Makes the rows of one stream."""

    def __init__(self) -> None:
        self._names: tuple[_Name, ...] | None = None

    def message(
        self,
        now: JobSnapshot,
        firing: Iterable[Alert],
        progress: Progress | None,
        judged_since: float | None,
    ) -> pb.LookTell:
        """Build the row of a snapshot. It must be sent, and after the snapshot before it."""
        values, times = array("d"), array("d")
        names: list[_Name] = []
        for each in now.readings:
            if isinstance(each, Sample):
                names.append((each.metric, each.labels, each.source))
                values.append(each.value)
                times.append(each.time)
            else:
                names.append(each)
        row = pb.SightRow(
            time=now.time,
            resolution_s=now.resolution_s,
            values=little_endian(values),
            times=little_endian(times),
            firing=map(alert_message, firing),
            judged_since=judged_since,
        )
        if progress is not None:
            row.progress.CopyFrom(pb.ProgressTold(**asdict(progress)))
        if tuple(names) != self._names:
            self._names = tuple(names)
            row.layout.CopyFrom(_layout_message(self._names))
        return pb.LookTell(row=row)


def _layout_message(names: Iterable[_Name]) -> pb.SightLayout:
    message = pb.SightLayout()
    for each in names:
        if isinstance(each, Absence):
            reading = message.readings.add(
                metric=each.metric,
                reason=each.reason[:LONGEST_TEXT],
                last_error=each.last_error[:LONGEST_TEXT],
            )
            add_labels(reading.labels, each.labels)
        else:
            metric, labels, source = each
            add_labels(message.readings.add(metric=metric, source=source.value).labels, labels)
    return message


class SnapshotReader:
    """Reads the messages of one stream."""

    def __init__(self, node: str, job_id: int) -> None:
        self._node = node
        self._job_id = job_id
        self._layout: _ReadLayout | None = None
        self._before: JobSnapshot | None = None

    def news(self, payload: bytes) -> AgentNews | None:
        """Parse a message; None if the node does not have the job. Raises `BadSnapshot`."""
        try:
            message = pb.LookTell.FromString(payload)
        except DecodeError:
            raise BadSnapshot("not a tell") from None
        if message.WhichOneof("tell") == "row":
            news: AgentNews | None = NodeMeasured(self._snapshot(message.row))
        else:
            news = news_in(message, self._node, self._job_id)
        if isinstance(news, NodeMeasured):
            self._before = news.snapshot.now
        return news

    def _snapshot(self, row: pb.SightRow) -> NodeSnapshot:
        if row.HasField("layout"):
            self._layout = _ReadLayout(row.layout)
        before = self._before
        if self._layout is None or before is None:
            raise BadSnapshot("a row without names, or without a sight before it")
        if not is_moment(row.time):
            raise BadSnapshot("no moment at which anything was measured")
        return NodeSnapshot(
            node=self._node,
            before=before,
            now=self._layout.snapshot(row, before.identity),
            firing=tuple(map(alert_of, row.firing)),
            progress=progress_of(row.progress) if row.HasField("progress") else None,
            judged_since=judged_since_of(row),
        )


class _ReadLayout:
    """A layout, and what its numbers can be."""

    def __init__(self, message: pb.SightLayout) -> None:
        """Raises `BadSnapshot`."""
        if len(message.readings) > MOST_READINGS:
            raise BadSnapshot("more readings than a job can have")
        self._most: list[float] = []
        self._layout = SnapshotLayout(self._known(message.readings))
        keys = [(each.metric, each.labels) for each in self._layout.readings]
        if len(set(keys)) != len(keys):
            raise BadSnapshot("a metric is told twice")
        sources = {each.source for each in self._layout.readings if not isinstance(each, Absence)}
        if Provenance.SLICE_GUEST in sources and len(sources) > 1:
            raise BadSnapshot("values of a slice's guest and of its host for one job")
        self._numbers = Struct(f"<{len(self._most)}d")

    def _known(self, readings: Iterable[pb.ReadingTold]) -> Iterator[NamedSeries | Absence]:
        """Leave out unknown metrics, but count their numbers."""
        for each in readings:
            if each.metric not in CATALOGUE:
                if each.source:
                    self._most.append(float("inf"))
            elif each.source:
                yield self._series(each)
            else:
                yield absence_of(each)

    def _series(self, message: pb.ReadingTold) -> NamedSeries:
        labels = labels_of(message.labels)
        try:
            source, most = known_series(message.metric, message.source, labels)
        except BadSamples as fault:
            raise BadSnapshot(str(fault)) from None
        self._most.append(most)
        metric = CATALOGUE[message.metric].name
        return NamedSeries(metric, labels, source, len(self._most) - 1)

    def snapshot(self, row: pb.SightRow, identity: JobIdentity) -> RowSnapshot:
        """Read the numbers of a row. Raises `BadSnapshot`."""
        packed, packed_times = row.values, row.times
        if {len(packed), len(packed_times)} != {self._numbers.size}:
            raise BadSnapshot("not as many numbers as names")
        values, times = self._numbers.unpack(packed), self._numbers.unpack(packed_times)
        if not all(0.0 <= value <= most for value, most in zip(values, self._most, strict=True)):
            raise BadSnapshot("a value that its metric can't have")
        if not all(map(is_moment, times)):
            raise BadSnapshot("no moment at which anything was measured")
        return RowSnapshot(
            identity, row.time, interval_of(row.resolution_s), self._layout, values, times
        )
