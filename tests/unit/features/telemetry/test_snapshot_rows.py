"""Rows of a stream are the snapshots that sights would be."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.alert import Progress
from lattice.domain.measured import JobSnapshot, Shown, shown_of
from lattice.domain.metric import Absence, MetricReading, Provenance, Sample, labelled
from lattice.domain.node_snapshot import NodeMeasured, NodeSnapshot
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.snapshot_rows import SnapshotReader, SnapshotRows
from lattice.features.telemetry.convert.snapshots import (
    BadSnapshot,
    news_of,
    node_snapshot_message,
)
from lattice.features.watch.service.figures import WatchFigures
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.unit.features.telemetry.test_node_snapshots import alert

T0 = 1_794_702_390.0
BEGAN = T0 - 60
_JOB = JobIdentity("b", 7, 1, BEGAN)
_METRICS = [
    ("cpu_seconds_total", ()),
    ("memory_used_bytes", ()),
    ("network_tx_bytes_total", labelled(scope="node")),
    *(("gpu_utilization_percent", labelled(gpu_uuid=f"GPU-{card}")) for card in range(2)),
    *(("io_latency_seconds_bucket", labelled(le=edge)) for edge in ("0.1", "+Inf")),
]


def snapshot_at(at: float, readings: list[MetricReading]) -> JobSnapshot:
    return JobSnapshot(_JOB, at, 10.0, tuple(readings))


@st.composite
def sequences(draw: st.DrawFn) -> list[JobSnapshot]:
    found = []
    for number in range(draw(st.integers(1, 5))):
        at = T0 + 10 * number
        readings: list[MetricReading] = []
        for metric, labels in _METRICS:
            match draw(st.sampled_from(["sample", "sample", "absence", "nothing"])):
                case "sample":
                    value = draw(st.floats(0, 100))
                    read_at = at + draw(st.sampled_from([0.0, -7.25, 0.123456]))
                    readings.append(Sample(metric, value, read_at, labels=labels))
                case "absence":
                    reason = draw(st.sampled_from(["no card answers", "no counter"]))
                    readings.append(Absence(metric, reason, "error 5", labels))
        found.append(snapshot_at(at, readings))
    return found


def wired(message: pb.LookTell) -> bytes:
    return message.SerializeToString()


def as_sight(before: JobSnapshot | None, now: JobSnapshot) -> pb.LookTell:
    progress = Progress(output=now.time)
    return pb.LookTell(
        sight=node_snapshot_message(BEGAN, before, now, [alert()], progress, BEGAN + 1)
    )


def snapshot_in(news: object) -> NodeSnapshot:
    assert isinstance(news, NodeMeasured)
    return news.snapshot


@pytest.mark.spec("WATCH-1", "TOP-1")
@given(sequences())
def test_a_row_shows_what_a_sight_shows(snapshots: list[JobSnapshot]) -> None:
    rows, reader = SnapshotRows(), SnapshotReader("n1", 7)
    reader.news(wired(as_sight(None, snapshots[0])))
    figures = [WatchFigures(tuple(Shown), 1) for _ in range(2)]
    for before, now in pairwise(snapshots):
        row = rows.message(now, [alert()], Progress(output=now.time), BEGAN + 1)
        got = snapshot_in(reader.news(wired(row)))
        sight = snapshot_in(news_of(wired(as_sight(before, now)), "n1", 7))
        assert got.now.readings == sight.now.readings == now.readings
        assert (got.now.time, got.now.resolution_s) == (now.time, 10.0)
        assert (got.firing, got.progress) == (sight.firing, sight.progress)
        assert got.judged_since == sight.judged_since
        for metric in Shown:
            shown = shown_of(metric, got.before, got.now)
            assert shown == shown_of(metric, sight.before, sight.now)
        for each, snapshot in zip(figures, (got, sight), strict=True):
            each.take(snapshot)
        ours, theirs = (each.drained() for each in figures)
        assert ours == theirs


def test_names_are_sent_when_they_change() -> None:
    rows = SnapshotRows()

    def sent(at: float, *readings: MetricReading) -> pb.SightRow:
        return rows.message(snapshot_at(at, list(readings)), (), None, None).row

    def cpu(at: float) -> Sample:
        return Sample("cpu_seconds_total", at - BEGAN, at)

    assert sent(T0, cpu(T0)).HasField("layout")
    second = sent(T0 + 10, cpu(T0 + 10))
    assert not second.HasField("layout")
    assert second.ByteSize() < 50
    assert sent(T0 + 20, cpu(T0 + 20), Absence("memory_used_bytes", "gone")).HasField("layout")


def test_a_metric_that_is_not_known_yet_is_left_out() -> None:
    reader = SnapshotReader("n1", 7)
    reader.news(wired(as_sight(None, snapshot_at(T0, []))))
    row = pb.SightRow(
        time=T0 + 10, resolution_s=10.0, values=struct.pack("<2d", 9e30, 40.0),
        times=struct.pack("<2d", T0 + 10, T0 + 10),
    )  # fmt: skip
    row.layout.readings.add(metric="of_tomorrow", source="host_local_probe")
    row.layout.readings.add(metric="memory_used_bytes", source="host_local_probe")
    row.layout.readings.add(metric="of_tomorrow_too", reason="no")
    got = snapshot_in(reader.news(wired(pb.LookTell(row=row))))
    assert got.now.readings == (Sample("memory_used_bytes", 40.0, T0 + 10),)
    assert got.now.samples == got.now.of("memory_used_bytes")
    assert got.now.absence("cpu_seconds_total") is None


def good_row() -> pb.SightRow:
    row = SnapshotRows().message(
        snapshot_at(T0 + 10, [Sample("memory_used_bytes", 1.0, T0 + 10)]), (), None, None
    )
    return row.row


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.ClearField("layout"),
        lambda row: setattr(row, "values", struct.pack("<d", math.nan)),
        lambda row: setattr(row, "values", struct.pack("<d", -1.0)),
        lambda row: setattr(row, "values", bytes(7)),
        lambda row: setattr(row, "times", struct.pack("<d", 5.0)),
        lambda row: setattr(row, "times", b""),
        lambda row: setattr(row, "time", math.nan),
        lambda row: setattr(row, "resolution_s", 0.0),
        lambda row: setattr(row, "judged_since", 1.0),
        lambda row: setattr(row.layout.readings[0], "source", "unavailable"),
        lambda row: row.layout.readings.add(metric="memory_used_bytes", reason="twice"),
        lambda row: row.layout.readings[0].labels.add(name="user", value="bob"),
    ],
)
def test_a_row_that_no_node_can_send_is_refused(change: object) -> None:
    reader = SnapshotReader("n1", 7)
    reader.news(wired(as_sight(None, snapshot_at(T0, []))))
    row = good_row()
    change(row)  # type: ignore[operator]
    with pytest.raises(BadSnapshot):
        reader.news(wired(pb.LookTell(row=row)))
    assert reader.news(wired(pb.LookTell(row=good_row()))) is not None


def test_values_of_a_guest_and_its_host_are_refused() -> None:
    reader = SnapshotReader("n1", 7)
    reader.news(wired(as_sight(None, snapshot_at(T0, []))))
    row = good_row()
    row.layout.readings.add(metric="processes", source=Provenance.SLICE_GUEST.value)
    row.values += struct.pack("<d", 1.0)
    row.times += struct.pack("<d", T0)
    with pytest.raises(BadSnapshot, match="guest"):
        reader.news(wired(pb.LookTell(row=row)))


def test_a_row_needs_a_sight_before_it() -> None:
    with pytest.raises(BadSnapshot):
        SnapshotReader("n1", 7).news(wired(pb.LookTell(row=good_row())))
