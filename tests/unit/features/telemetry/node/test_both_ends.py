"""A server's looks at a node's true feed, and a node's batches at a server's true intake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from lattice.access.grants import GrantSigner
from lattice.base.signatures import SigningKey
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown, ShownValue, shown_of
from lattice.domain.node_snapshot import NodeMeasured, NodeOver
from lattice.domain.stream import StreamQuestion
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.telemetry.convert.batches import StoredBatch, batch_of
from lattice.features.telemetry.node.buffer import SampleBuffer
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.features.telemetry.node.sender import Sending
from lattice.features.telemetry.service.node_follow import Means
from lattice.features.telemetry.service.node_snapshots import AgentSnapshots
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.telemetry.node.measuring import T0, Node, job_of

pytestmark = pytest.mark.timeout(180)


def attempt() -> JobAttempt:
    started = datetime.fromtimestamp(job_of().identity.started, UTC)
    found = allocation(7, "ada", "phys", started=started, submitted=started)
    return JobAttempt(found, attempts_of(found)[0])


class OneNode:
    """The port `NodeStreams` in front of a real feed."""

    def __init__(self, node: Node) -> None:
        self._feed = MetricFeed(node.sights, node.sampling, sleep=node.pass_s)

    def linked_to(self, node: str) -> str:
        return node and "r1"

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        async with answered_by(self._feed, question.opening) as carrier:
            yield carrier


@asynccontextmanager
async def looking(node: Node) -> AsyncIterator[AgentSnapshots]:
    async def whose(_node: str, _job_id: int, _started: float) -> JobAttempt:
        return attempt()

    clock = ManualClock(datetime.fromtimestamp(T0, UTC))
    looks = AgentSnapshots(
        Means(
            nodes=OneNode(node),
            signer=GrantSigner(SigningKey.generate(), clock),
            clock=clock,
            find_attempt=whose,
            modes=lambda ref: ModeInForce(allocation=ref, mode=Mode.PROD, interval_s=30.0),
        )
    )
    try:
        yield looks
    finally:
        await looks.aclose()


@pytest.mark.spec("WATCH-1")
async def test_a_look_shows_rates_at_once() -> None:
    async with Node(job_of()) as node, looking(node) as looks:
        (sight,), silences = await looks.read(attempt())
    assert silences == ()
    (processor,) = shown_of(Shown.CPU_UTILIZATION, sight.before, sight.now)
    assert isinstance(processor, ShownValue)
    assert processor.value == pytest.approx(100.0)


@pytest.mark.spec("SRC-2")
async def test_a_job_that_is_not_there_is_a_silence_with_its_reason() -> None:
    async with Node() as node, looking(node) as looks:
        sights, (silence,) = await looks.read(attempt())
    assert sights == ()
    assert silence.reason == "it does not know this job"


@pytest.mark.spec("WATCH-1")
async def test_who_follows_hears_of_each_moment_and_of_the_end() -> None:
    async with Node(job_of()) as node, looking(node) as looks:
        await node.pass_s(2)
        async with looks.follow(attempt()) as followed, asyncio.timeout(60):
            news = aiter(followed)
            first = await anext(news)
            assert isinstance(first, NodeMeasured)
            assert first.snapshot.now.time == T0 + 1
            await node.pass_s(30)
            second = await anext(news)
            assert isinstance(second, NodeMeasured)
            assert second.snapshot.before is not None
            assert (second.snapshot.before.time, second.snapshot.now.time) == (T0 + 1, T0 + 30)
            node.jobs.end(job_of())
            while not isinstance(heard := await anext(news), NodeOver):
                assert isinstance(heard, NodeMeasured)


@pytest.mark.spec("TOP-2")
async def test_what_is_sent_is_what_was_measured() -> None:
    async with Node(job_of(7), job_of(8)) as node:
        node.intervals[8] = 1.0
        buffer = SampleBuffer(node.time.now, 1 << 20)
        await node.pass_s(32)
        for snapshot in node.heard.snapshots:
            buffer.add(snapshot)
    taken: list[pb.SampleBatch] = []

    class Servers:
        async def store(self, outgoing: OutgoingRows) -> StoredBatch:
            taken.extend(
                pb.SampleBatch.FromString(each.SerializeToString()) for each in outgoing.batches()
            )
            return StoredBatch(1)

    sending = Sending(buffer, Servers(), node.sights.began)
    await sending._send_oldest()
    got = batch_of(taken[0])
    assert (got.refused, len(buffer)) == (0, 0)
    points = {
        (job.job_id, each.metric, at, value)
        for job in got.jobs
        for each in job.series
        for at, value in each.points(job.times_ms)
    }
    assert points == {
        (each.identity.job_id, sample.metric, sample.time, sample.value)
        for each in node.heard.snapshots
        for sample in each.samples
    }
