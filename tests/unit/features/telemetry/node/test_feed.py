"""A node's answer to a server that looks: true, of the right attempt, in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from lattice.base.errors import NotFound
from lattice.domain.alert import Alert, AlertRule, Phase, Severity
from lattice.domain.measured import JobSnapshot, Shown, ShownValue, shown_of
from lattice.domain.metric import Absence, Sample, labelled
from lattice.domain.node_snapshot import NodeAlert, NodeMeasured, NodeOver
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.run_events import RunEvent, RunEventKind
from lattice.features.telemetry.convert.run_events import events_of
from lattice.features.telemetry.convert.snapshot_rows import SnapshotReader
from lattice.features.telemetry.convert.snapshots import (
    SnapshotRequest,
    Want,
    opening_bytes,
)
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.snapshots import MOST_ALERTS
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.eventually import eventually_async
from tests.unit.features.telemetry.node.measuring import T0, Node, job_of, settle

BEGAN = job_of().identity.started
ALERT = Alert(
    rule=AlertRule.OOM_KILL,
    phase=Phase.FIRING,
    severity=Severity.CRITICAL,
    value=1.0,
    since=T0,
    time=T0,
    text="A process was killed for want of memory.",
)


class Server:
    """The other end of a session; `slow` until it is let go."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.forms: list[str | None] = []
        self._reader = SnapshotReader("n1", 7)
        self.last = False
        self.ready = asyncio.Event()
        self.ready.set()
        self.leaving = asyncio.Event()

    async def send(self, payload: bytes, *, last: bool = False) -> None:
        assert not self.last
        await self.ready.wait()
        assert len(payload) <= LARGEST_MESSAGE_BYTES
        self.forms.append(pb.LookTell.FromString(payload).WhichOneof("tell"))
        self.heard.append(self._reader.news(payload))
        self.last = last

    def try_send(self, payload: bytes) -> bool:  # noqa: ARG002 - the port
        return False

    async def receive(self) -> bytes | None:
        await self.leaving.wait()
        return None

    @property
    def moments(self) -> list[float]:
        return [
            each.snapshot.now.time - T0 for each in self.heard if isinstance(each, NodeMeasured)
        ]


def asking(
    node: Node, want: Want, *, started: float = BEGAN, **form: bool
) -> tuple[Server, asyncio.Task[None]]:
    async def nap(seconds: float) -> None:
        await node.pass_s(seconds)

    feed, server = MetricFeed(node.sights, node.sampling, sleep=nap), Server()
    opening = opening_bytes(SnapshotRequest(7, want, started, **form))
    return server, asyncio.create_task(feed(server, opening))


async def until(done: Callable[[], bool]) -> None:
    await eventually_async(done)


@pytest.mark.spec("WATCH-1")
async def test_a_first_look_looks_twice_so_that_rates_are_there() -> None:
    async with Node(job_of()) as node:
        server, task = asking(node, Want.ONCE)
        await task
        (told,) = server.heard
        assert server.last
    (processor,) = shown_of(Shown.CPU_UTILIZATION, told.snapshot.before, told.snapshot.now)
    assert isinstance(processor, ShownValue)
    assert processor.value == pytest.approx(100.0)
    assert told.snapshot.now.time - told.snapshot.before.time == pytest.approx(0.75)


@pytest.mark.spec("WATCH-1")
async def test_a_later_look_is_compared_with_what_was_sampled() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(12)
        server, task = asking(node, Want.ONCE)
        await task
    (told,) = server.heard
    assert (told.snapshot.before.time, told.snapshot.now.time) == (T0 + 1, T0 + 12)
    assert told.snapshot.now.resolution_s == 30.0
    assert told.snapshot.progress is not None


async def test_a_node_tells_what_happened_also_after_the_end() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(12)
        event = RunEvent(kind=RunEventKind.JOB, time=T0 + 3, text="done")
        assert node.sights.report(job_of().identity, event)
        node.jobs.end(job_of())
        await node.pass_s(1)
        sent: list[bytes] = []

        class Asking(Server):
            async def send(self, payload: bytes, *, last: bool = False) -> None:
                sent.append(payload)
                self.last = last

        server = Asking()
        opening = opening_bytes(SnapshotRequest(7, Want.EVENTS, BEGAN))
        await MetricFeed(node.sights, node.sampling)(server, opening)
        assert server.last
    (found,) = events_of(sent[0], "n1")
    assert (found.events, found.began, found.is_from_the_beginning) == ((event,), BEGAN, True)


@pytest.mark.spec("SRC-2")
async def test_what_was_sampled_long_ago_is_compared_with_nothing() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(2)
        before = node.heard.snapshots[-1]
        now = JobSnapshot(before.identity, before.time + 600, 30.0, before.readings)
        life = node.sights.find(7, BEGAN)
        assert life is not None
        assert life.before_of(now) is None


@pytest.mark.spec("WATCH-1")
async def test_who_follows_is_told_each_moment_each_alert_and_the_end() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(2)
        server, task = asking(node, Want.FOLLOW)
        await settle()
        await node.pass_s(2)
        node.judges[0].next = (ALERT,)
        await node.pass_s(1)
        node.jobs.end(job_of())
        await until(task.done)
        await task
        assert node.judges[0].seen == [(T0 + each, T0) for each in (1, 2, 3, 4, 5)]
    assert server.moments == [2, 3, 4, 5]
    *_, told, stands, over = server.heard
    assert (told, over) == (NodeAlert("n1", ALERT), NodeOver("n1")), "first what has changed"
    assert server.heard[1].snapshot.before.time == T0 + 2
    assert stands.snapshot.firing == (ALERT,)
    assert stands.snapshot.judged_since == T0 + 1
    assert server.last


@pytest.mark.spec("WATCH-1")
async def test_following_changes_nothing_in_how_often_a_job_is_read() -> None:
    async with Node(job_of()) as node:
        _, task = asking(node, Want.FOLLOW)
        await node.pass_s(61)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert node.heard.moments() == [1, 30, 60]


@pytest.mark.spec("WATCH-1")
async def test_a_slow_server_is_told_the_newest_and_keeps_nobody_waiting() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(1)
        server, task = asking(node, Want.FOLLOW)
        server.ready.clear()
        node.judges[0].next = (ALERT,)
        await node.pass_s(20)
        assert len(node.heard.moments()) == 21
        server.ready.set()
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert server.moments == [1, 21]
    assert server.heard[-2] == NodeAlert("n1", ALERT), "no alert is left out"


@pytest.mark.spec("WATCH-1")
async def test_a_server_too_many_alerts_behind_is_cut_off_and_no_alert_is_dropped_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alerts = tuple(replace(ALERT, subject=str(each)) for each in range(MOST_ALERTS + 44))
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(1)
        server, task = asking(node, Want.FOLLOW)
        server.ready.clear()
        for begin in range(0, len(alerts), 100):
            node.judges[0].next = alerts[begin : begin + 100]
            await node.pass_s(1)
        server.ready.set()
        await until(task.done)
        await task
        run = node.sights.find(7, BEGAN)
        assert run is not None
        assert not run.followers
    *_, newest, end = server.heard
    sent = tuple(each.alert for each in server.heard if isinstance(each, NodeAlert))
    assert sent == alerts[:MOST_ALERTS], "in order and without a gap"
    assert isinstance(newest, NodeMeasured)
    assert end is None, "the job is not over"
    assert server.last
    assert f"{len(alerts)} alerts behind" in caplog.text


async def test_a_server_that_leaves_is_let_go() -> None:
    async with Node(job_of()) as node:
        server, task = asking(node, Want.FOLLOW)
        await settle()
        server.leaving.set()
        await until(task.done)
        life = node.sights.find(7, BEGAN)
        assert life is not None
        assert not life.followers


@pytest.mark.spec("WATCH-1")
async def test_who_follows_a_job_that_is_not_there_yet_waits_for_it() -> None:
    async with Node() as node:
        server, task = asking(node, Want.FOLLOW)
        await node.pass_s(2)
        assert server.heard == []
        node.jobs.put(job_of())
        await node.pass_s(2)
        assert server.moments == [3]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_job_that_is_not_known_is_answered_with_nothing() -> None:
    async with Node() as node:
        server, task = asking(node, Want.ONCE)
        await task
    assert server.heard == [None]
    assert server.last


@pytest.mark.spec("WATCH-1")
async def test_a_job_that_is_over_is_told_as_over() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(2)
        node.jobs.end(job_of())
        await settle()
        for want in (Want.ONCE, Want.FOLLOW):
            server, task = asking(node, want)
            await task
            assert server.heard == [NodeOver("n1")]


@pytest.mark.spec("SRC-2")
async def test_the_life_before_is_not_taken_for_the_attempt_that_was_asked_for() -> None:
    first = job_of(inode=1)
    async with Node(first) as node:
        await node.pass_s(2)
        server, task = asking(node, Want.ONCE, started=BEGAN + 30)
        await task
        assert server.heard == [None]
        server, task = asking(node, Want.ONCE, started=BEGAN + 1.5)
        await task
    assert isinstance(server.heard[0], NodeMeasured), "clocks differ a little"


async def test_times_are_the_servers() -> None:
    async with Node(job_of(), ahead_s=302.0) as node:
        await node.pass_s(2)
        server, task = asking(node, Want.ONCE, started=BEGAN - 302)
        await task
    (told,) = server.heard
    now = told.snapshot.now
    assert now.identity.started == BEGAN - 302
    assert now.samples[0].time == pytest.approx(now.time, abs=0.3)
    assert now.time == pytest.approx(T0 + 2, abs=1)


async def test_a_question_that_is_none_is_refused() -> None:
    async with Node() as node:
        feed = MetricFeed(node.sights, node.sampling)
        with pytest.raises(NotFound):
            await feed(Server(), b"\xff\xff")


async def test_an_older_servers_question_for_the_black_box_is_refused_as_any_unknown_one() -> None:
    async with Node(job_of()) as node:
        await node.pass_s(31)
        feed, refusals = MetricFeed(node.sights, node.sampling), []
        for want in ("black_box", "weather"):
            server = Server()
            opening = pb.LookOpening(job_id=7, want=want, started=BEGAN)
            with pytest.raises(NotFound) as refused:
                await feed(server, opening.SerializeToString())
            refusals.append(refused.value.message)
            assert server.heard == []
    assert refusals[0] == refusals[1]


@pytest.mark.spec("SRC-2")
async def test_more_series_than_fit_are_told_as_left_out() -> None:
    many = tuple(
        Sample("gpu_xid_total", 1.0, T0, labels=labelled(gpu_uuid=f"{number:0120}", xid="31"))
        for number in range(2000)
    )
    async with Node(job_of()) as node:
        threads = Sample("threads", 3.0, T0)
        identity = job_of().identity
        node.sights.measured(JobSnapshot(identity, T0 - 1, 1.0, (threads, *many)))
        node.sights.measured(JobSnapshot(identity, T0, 1.0, (threads, *many)))
        server, task = asking(node, Want.FOLLOW)
        await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    (told,) = server.heard
    assert told.snapshot.now.of("threads") == (threads,)
    left_out = told.snapshot.now.absence("gpu_xid_total")
    assert isinstance(left_out, Absence)
    assert "fit" in left_out.reason


async def test_a_rules_defect_keeps_no_sample_from_being_taken() -> None:
    async with Node(job_of()) as node:
        await settle()
        node.judges[0].see = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
        await node.pass_s(31)
    assert node.heard.moments() == [1, 30]


@pytest.mark.spec("WATCH-1")
async def test_a_server_that_reads_rows_gets_them_after_the_first() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(2)
        server, task = asking(node, Want.FOLLOW, rows=True)
        await settle()
        await node.pass_s(3)
        node.judges[0].next = (ALERT,)
        await node.pass_s(1)
        node.jobs.end(job_of())
        await until(task.done)
        await task
    assert server.forms == ["sight", "row", "row", "row", "alert", "row", "over"]
    assert server.moments == [2, 3, 4, 5, 6]
    measured = [each.snapshot for each in server.heard if isinstance(each, NodeMeasured)]
    for before, now in pairwise(measured):
        assert now.before is before.now
        (processor,) = shown_of(Shown.CPU_UTILIZATION, now.before, now.now)
        assert isinstance(processor, ShownValue)
        assert processor.value == pytest.approx(100.0)


@pytest.mark.spec("WATCH-1")
async def test_after_a_snapshot_that_was_left_out_the_next_is_whole() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(2)
        server, task = asking(node, Want.FOLLOW, rows=True)
        await settle()
        await node.pass_s(1)
        server.ready.clear()
        await node.pass_s(3)
        server.ready.set()
        await settle()
        await node.pass_s(1)
        node.jobs.end(job_of())
        await until(task.done)
    assert server.forms == ["sight", "row", "row", "sight", "row", "over"]
    assert server.moments == [2, 3, 4, 6, 7]
    measured = [each.snapshot for each in server.heard if isinstance(each, NodeMeasured)]
    assert [each.before.time - T0 for each in measured] == [1, 2, 3, 5, 6]


@pytest.mark.spec("WATCH-2")
async def test_a_server_that_wants_only_alerts_gets_no_readings() -> None:
    async with Node(job_of()) as node:
        node.intervals[7] = 1.0
        await node.pass_s(2)
        server, task = asking(node, Want.FOLLOW, rows=True, alerts_only=True)
        await settle()
        await node.pass_s(9)
        node.judges[0].next = (ALERT,)
        await node.pass_s(31)
        node.jobs.end(job_of())
        await until(task.done)
    assert server.forms == ["sight", "alert", "sight", "sight", "over"]
    assert server.moments == [2, 12, 42]
    sights = [each.snapshot for each in server.heard if isinstance(each, NodeMeasured)]
    assert not any(each.now.readings or each.before for each in sights)
    assert all(each.judged_since is not None for each in sights)
