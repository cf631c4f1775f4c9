"""Rows on a stream: the store gets what it gets of batches, and the guard holds for every row."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.metric import CATALOGUE, Provenance, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.features.telemetry.convert.rows import MOST_LAYOUTS, MOST_ROWS, MOST_SERIES
from lattice.features.telemetry.node.buffer import SampleRow, SeriesKey
from lattice.features.telemetry.node.row_messages import LARGEST_BYTES, DeclaredNames, OutgoingRows
from lattice.features.telemetry.service.node_series import NodeSeries
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.in_memory_metrics import InMemoryMetricStore
from tests.fakes.supervised import SupervisedLoops
from tests.recorded_samples import TAPES, AsBatches, AsRows, recorded
from tests.unit.features.telemetry.test_intake import CPU, PROBE, STAMPED, Site

CARD = labelled(gpu_uuid="GPU-1")
CPU_SERIES: SeriesKey = (CPU, (), PROBE)
GPU_SERIES: SeriesKey = ("gpu_utilization_percent", CARD, PROBE)


class Node:
    """One node's stream to a server."""

    def __init__(self, site: Site, name: str = "n1") -> None:
        self._site = site
        self.series: NodeSeries = site.intake.series_of(name)
        self.names = DeclaredNames()
        self.sent: list[pb.SampleRows] = []

    async def send(self, *rows: SampleRow, lost: int = 0) -> StoredBatch:
        started = self._site.started + 0.3
        outgoing = OutgoingRows(rows, lambda _: started, lost)
        (message,) = self.names.messages(outgoing)
        return await self.give(message)

    async def give(self, message: pb.SampleRows) -> StoredBatch:
        self.sent.append(message)
        wired = pb.SampleRows.FromString(message.SerializeToString())
        return await self._site.intake.store_rows(self.series, wired)


def row(
    site: Site,
    values: Sequence[float],
    *layout: SeriesKey,
    at: float = 0.0,
    job_id: int = 7,
    late_ms: Sequence[int] = (),
) -> SampleRow:
    return SampleRow(
        JobIdentity("", job_id, 0, site.started),
        round((site.now + at) * 1000),
        layout or (CPU_SERIES,),
        array("d", values),
        array("H", late_ms or [0] * len(values)),
    )


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with site.writing.running(SupervisedLoops()):
        yield site


def points(store: InMemoryMetricStore) -> dict[tuple[tuple[str, str], ...], dict[float, bytes]]:
    """All that a store has, numbers as their bytes."""
    return {
        labels: {at: struct.pack("<d", value) for at, value in found.items()}
        for labels, found in store._points.items()
    }


async def in_both_forms(
    site: Site, other: Site, node: str, batches: Iterable[pb.SampleBatch]
) -> None:
    older, newer = AsBatches(site.intake, node), AsRows(other.intake, node)
    running = SupervisedLoops()
    async with site.writing.running(running), other.writing.running(running):
        for batch in batches:
            stored, again = await older.send(batch), await newer.send(batch)
            assert (again.stored, again.refused) == (stored.stored, stored.refused)
    assert points(site.store) == points(other.store)


@pytest.mark.spec("SRC-1", "TOP-2")
@pytest.mark.parametrize("file", TAPES, ids=lambda file: file.stem)
async def test_the_store_gets_of_rows_what_it_gets_of_recorded_batches(file: Path) -> None:
    node, batches = recorded(file)
    jobs = [job for batch in batches for job in batch.jobs]
    assert jobs
    site, other = Site(), Site()
    newest_ms = max(time_ms for job in jobs for time_ms in job.times_ms)
    for each in (site, other):
        each.clock.advance(newest_ms / 1000 - each.now)
        each.scheduler.allocations = [
            replace(each.job(job_id), nodes=node, started=datetime.fromtimestamp(started, UTC))
            for job_id, started in {job.job_id: job.started for job in jobs}.items()
        ]
    await in_both_forms(site, other, node, batches)
    assert len(points(site.store)) > 10


_SERIES = [CPU_SERIES, GPU_SERIES, ("processes", (), PROBE), ("network_tx_bytes_total",
           labelled(scope="node"), Provenance.IN_JOB_PROBE)]  # fmt: skip
_moments = st.lists(
    st.dictionaries(
        st.sampled_from(_SERIES),
        st.tuples(st.sampled_from([0.0, -0.0, 1.5, 99.0, 5e-324]), st.integers(0, 2000)),
    ),
    min_size=1,
    max_size=6,
)


@given(_moments, st.integers(7, 8))
async def test_any_samples_are_the_same_in_both_forms(
    moments: list[dict[SeriesKey, tuple[float, int]]], job_id: int
) -> None:
    """Job 8 does not run on the node."""
    site, other = Site(), Site()
    rows = [
        row(
            site,
            [value for value, _ in measured.values()],
            *measured,
            at=place - 30.0,
            job_id=job_id,
            late_ms=[late for _, late in measured.values()],
        )
        for place, measured in enumerate(moments)
        if measured
    ]
    if rows:
        batches = OutgoingRows(rows, lambda _: site.started + 0.3).batches()
        await in_both_forms(site, other, "n1", batches)


async def test_names_are_sent_once(site: Site) -> None:
    node = Node(site)
    for second in range(3):
        assert await node.send(row(site, [second, 50.0], CPU_SERIES, GPU_SERIES)) == StoredBatch(2)
    assert [len(each.layouts) for each in node.sent] == [1, 0, 0]
    assert node.sent[1].ByteSize() < 40
    assert site.told == []


@pytest.mark.spec("SRC-2")
async def test_missing_zero_and_nan_are_three_things(site: Site) -> None:
    node = Node(site)
    await node.send(row(site, [0.0], CPU_SERIES, at=-1))
    told = await node.send(row(site, [math.nan, 50.0], CPU_SERIES, GPU_SERIES))
    assert (told.stored, told.refused) == (1, 1)
    assert told.reason == "a value that cpu_seconds_total can't have"
    ((_, cpu),) = site.store.named("lattice_cpu_seconds_total").items()
    assert cpu == {site.now - 1: 0.0}
    ((_, gpu),) = site.store.named("lattice_gpu_utilization_percent").items()
    assert gpu == {site.now: 50.0}


@pytest.mark.spec("AUTH-9", "TOP-2")
@pytest.mark.threat("metric-writer")
async def test_a_job_of_another_node_is_refused_for_as_long_as_the_stream(site: Site) -> None:
    node = Node(site)
    for _ in range(2):
        told = await node.send(row(site, [1.0], job_id=8))
        assert (told.stored, told.refused) == (0, 1)
        assert told.reason == "job 8 did not run there"
    assert site.store.writes == []
    assert [rpc for rpc, _, _ in site.told] == ["StreamSamples"] * 2


@pytest.mark.spec("TOP-2")
async def test_a_job_that_has_ended_gets_no_more_samples(site: Site) -> None:
    node = Node(site)
    assert await node.send(row(site, [1.0])) == StoredBatch(1)
    (mine, *others) = site.scheduler.allocations
    ended = replace(mine, state=State.COMPLETED, ended=site.clock.now())
    site.scheduler.allocations = [ended, *others]
    site.scheduler.read()
    site.clock.advance(400)
    told = await node.send(row(site, [2.0], at=399.0))
    assert (told.stored, told.refused) == (0, 1)
    assert told.reason == "of a moment at which the job was not there"
    assert await node.send(row(site, [2.0], at=100.0)) == StoredBatch(1)


@pytest.mark.spec("AUDIT-1")
async def test_a_job_that_becomes_sensitive_is_refused_on_an_open_stream(site: Site) -> None:
    node = Node(site)
    assert await node.send(row(site, [1.0])) == StoredBatch(1)
    site.sensitive.add("7")
    told = await node.send(row(site, [2.0], at=1.0))
    assert (told.stored, told.refused) == (0, 1)
    assert "sensitive" in told.reason


@pytest.mark.spec("SRC-1")
async def test_a_series_follows_its_owner_on_an_open_stream(site: Site) -> None:
    node = Node(site)
    await node.send(row(site, [1.0]))
    (mine, *others) = site.scheduler.allocations
    site.scheduler.allocations = [replace(mine, account="genomics", tenant="biology"), *others]
    site.scheduler.read()
    site.clock.advance(301)  # for as long an attempt is remembered
    await node.send(row(site, [2.0], at=300.0))
    tenants = [dict(each)["tenant"] for each in site.store.named("lattice_cpu_seconds_total")]
    assert tenants == ["physics", "biology"]
    assert [len(each.layouts) for each in node.sent] == [1, 0], "the node need not declare again"


async def test_what_can_not_be_is_refused_and_the_rest_is_stored(site: Site) -> None:
    node = Node(site)
    layout = (CPU_SERIES, ("made_up", (), PROBE), (CPU, (), Provenance.SLURM_ACCOUNTING))
    told = await node.send(row(site, [1.0, 2.0, 3.0], *layout))
    assert (told.stored, told.refused) == (1, 2)
    assert "made_up" in told.reason
    told = await node.send(row(site, [1.0], at=61.0), row(site, [1.0], at=-4000.0))
    assert (told.stored, told.refused) == (0, 2)
    late = await node.send(row(site, [1.0, 2.0], CPU_SERIES, GPU_SERIES, late_ms=[0, 61_000]))
    assert (late.stored, late.refused) == (1, 1)
    for message, reason in (
        (pb.SampleRows(rows=[pb.SampleRow(layout=77, values=bytes(8))]), "were not declared"),
        (pb.SampleRows(rows=[pb.SampleRow(layout=0, values=bytes(9))]), "not as many samples"),
        (
            pb.SampleRows(
                layouts=[pb.SeriesLayout(number=5, job_id=7, started=math.nan)],
                rows=[pb.SampleRow(layout=5, values=bytes(8))],
            ),
            "no job that could have begun",
        ),
    ):
        told = await node.give(message)
        assert (told.stored, told.refused) == (0, 1)
        assert reason in told.reason


@pytest.mark.spec("LIMIT-4")
async def test_a_node_can_not_fill_a_server_with_names(site: Site) -> None:
    node = Node(site)
    series = [pb.SeriesName(metric=CPU, source=PROBE.value)]
    for number in range(MOST_LAYOUTS + 1):
        layout = pb.SeriesLayout(number=number, job_id=7, started=site.started, series=series)
        told = await node.give(pb.SampleRows(layouts=[layout]))
    assert told.reason == "of more series than a node can have"
    assert len(node.series._layouts) == MOST_LAYOUTS
    many = [
        pb.SeriesName(
            metric="gpu_xid_total",
            labels=[
                pb.SampleLabel(name="gpu_uuid", value="g"),
                pb.SampleLabel(name="xid", value=str(number)),
            ],
            source=PROBE.value,
        )
        for number in range(MOST_SERIES // 4)
    ]
    layouts = [
        pb.SeriesLayout(number=number, job_id=7, started=site.started, series=many)
        for number in range(5)
    ]
    told = await node.give(pb.SampleRows(anew=True, layouts=layouts))
    assert told.reason == "of more series than a node can have"
    assert node.series._size == MOST_SERIES
    # A number that is declared again takes no more room.
    assert (await node.give(pb.SampleRows(layouts=layouts[:1]))).reason == ""
    assert node.series._size == MOST_SERIES


async def test_a_node_with_more_layouts_than_there_can_be_declares_them_anew(site: Site) -> None:
    node = Node(site)
    plain = sorted(each.name for each in CATALOGUE.values() if not each.label_names)
    series = [(name, (), source) for source in (PROBE, Provenance.IN_JOB_PROBE) for name in plain]
    for number in range(MOST_LAYOUTS + 5):
        # The bits of a number choose the series, so that no two layouts are alike.
        layout = [each for place, each in enumerate(series) if number >> place & 1]
        if layout:
            told = await node.send(row(site, [1.0] * len(layout), *layout, at=-number / 1000))
            assert (told.stored, told.refused) == (len(layout), 0), number
    assert sum(each.anew for each in node.sent) == 1


def test_every_message_fits_on_the_wire() -> None:
    site = Site()
    wide = tuple(
        ("gpu_xid_total", labelled(gpu_uuid="ü" * 100, xid=str(xid)), PROBE) for xid in range(700)
    )
    names, seen = DeclaredNames(), []
    layouts = [wide[: 700 - width] for width in range(8)]
    rows = [row(site, [1.0] * len(each), *each, late_ms=[1] * len(each)) for each in layouts]
    messages = list(names.messages(OutgoingRows(rows, lambda _: site.started, 3)))
    for message in messages:
        assert message.ByteSize() <= LARGEST_BYTES
        assert message.lost_total == 3
        seen += [each.layout for each in message.rows]
    assert len(messages) > 1
    assert seen == list(range(8))


@pytest.mark.spec("LIMIT-4")
async def test_a_message_has_no_more_rows_than_a_server_reads_at_once(site: Site) -> None:
    rows = [row(site, [1.0], at=-number / 1000) for number in range(MOST_ROWS + 3)]
    names = DeclaredNames()
    messages = list(names.messages(OutgoingRows(rows, lambda _: site.started)))
    assert [len(each.rows) for each in messages] == [MOST_ROWS, 3]
    messages[0].rows.extend(messages[1].rows)
    told = await Node(site).give(messages[0])
    assert (told.stored, told.refused) == (MOST_ROWS, 3)
    assert told.reason == "of more rows than a message has"


async def test_while_slurm_is_silent_nothing_is_stored_and_names_stay_declared(site: Site) -> None:
    node = Node(site)
    site.scheduler.past_down = True
    site.scheduler.allocations, there = [], site.scheduler.allocations
    with pytest.raises(Unavailable):
        await node.send(row(site, [1.0]))
    site.scheduler.allocations = there
    assert await node.send(row(site, [1.0])) == StoredBatch(1)
    assert [len(each.layouts) for each in node.sent] == [1, 0]


_texts = st.text(max_size=20)
_numbers = st.floats(width=64) | st.just(1.4e16)


@st.composite
def messages(draw: st.DrawFn) -> pb.SampleRows:
    """Whatever a node that was taken over could send."""
    message = pb.SampleRows(anew=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 3))):
        layout = message.layouts.add(
            number=draw(st.integers(0, 2)),
            job_id=draw(st.sampled_from([0, 7, 8, 99])),
            started=draw(_numbers | st.just(1.79e9)),
        )
        for _ in range(draw(st.integers(0, 3))):
            series = layout.series.add(
                metric=draw(st.sampled_from([CPU, "up", "gpu_power_watts"]) | _texts),
                source=draw(st.sampled_from([each.value for each in Provenance]) | _texts),
            )
            for _ in range(draw(st.integers(0, 2))):
                name = draw(st.sampled_from(["user", "gpu_uuid", "node", "__name__"]) | _texts)
                series.labels.add(name=name, value=draw(_texts))
    for _ in range(draw(st.integers(0, 4))):
        values = draw(st.lists(_numbers, max_size=3))
        message.rows.add(
            layout=draw(st.integers(0, 3)),
            time_ms=draw(
                st.integers(-(2**63), 2**63 - 1) | st.integers(1794702300000, 1794702500000)
            ),
            values=draw(st.just(struct.pack(f"<{len(values)}d", *values)) | st.binary(max_size=20)),
            late_ms=draw(st.just(b"") | st.binary(max_size=6)),
        )
    return message


@pytest.mark.spec("SRC-2", "TOP-2")
@pytest.mark.threat("metric-writer")
@given(st.lists(messages(), min_size=1, max_size=3))
async def test_whatever_a_node_sends_only_its_own_jobs_series_are_written(
    sent: list[pb.SampleRows],
) -> None:
    site = Site()
    async with site.writing.running(SupervisedLoops()):
        node = Node(site)
        for message in sent:
            told = await node.give(message)
            claimed = sum(len(each.values) // 8 for each in message.rows)
            assert told.stored + told.refused == claimed
    for series in (each for write in site.store.writes for each in write):
        labels = series.labels
        assert (labels["node"], labels["alloc"], labels["user"]) == ("n1", "7", "alice")
        known = CATALOGUE[labels["__name__"].removeprefix("lattice_")]
        assert set(labels) == {"__name__", *STAMPED, *known.label_names}
        for moment, value in series.points:
            assert site.started - 121 <= moment <= site.now + 60
            assert 0 <= value <= known.most
