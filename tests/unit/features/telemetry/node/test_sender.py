"""Batches to the servers: one at a time, oldest first, sent again until they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lattice.base.errors import LatticeError, RateLimited, Unavailable, UsageError
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.features.telemetry.convert.batches import StoredBatch, batch_of
from lattice.features.telemetry.node.buffer import SampleBuffer
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.features.telemetry.node.sender import Sending
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.eventually import eventually_async

T0 = 1_794_702_390.0


class Servers:
    """The port `SampleIntake`; `answers` are given in turn, then everything is stored."""

    def __init__(self, *answers: LatticeError | StoredBatch) -> None:
        self.answers = list(answers)
        self.taken: list[pb.SampleBatch] = []
        self.tries = 0
        self.at_once = 0

    async def store(self, outgoing: OutgoingRows) -> StoredBatch:
        self.tries += 1
        self.at_once += 1
        assert self.at_once == 1, "one batch in flight"
        await asyncio.sleep(0)
        self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, LatticeError):
            raise answer
        batches = list(outgoing.batches())
        self.taken += batches
        got = [batch_of(each) for each in batches]
        assert not any(each.refused for each in got)
        return answer or StoredBatch(sum(job.count for each in got for job in each.jobs))

    @property
    def moments(self) -> list[int]:
        return [each for batch in self.taken for job in batch.jobs for each in job.times_ms]


class Naps:
    """Sleeps that take no time but are remembered; more than `most` is a busy loop."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        assert len(self.taken) < 1000
        await asyncio.sleep(0)


def snapshot(at: float, job_id: int = 7, width: int = 1) -> JobSnapshot:
    identity = JobIdentity("b", job_id, 1, T0 - 5)
    samples = tuple(
        Sample("gpu_xid_total", 1.0, at, labels=labelled(gpu_uuid="g" * 120, xid=str(number)))
        for number in range(width)
    )
    return JobSnapshot(identity, at, 1.0, samples)


def filled(rows: int, width: int = 1) -> SampleBuffer:
    buffer = SampleBuffer(lambda: T0 + rows, 1 << 28)
    for second in range(rows):
        buffer.add(snapshot(T0 + second, width=width))
    return buffer


async def until(sending: Sending, done: Callable[[], bool]) -> None:
    running = asyncio.create_task(sending.run())
    try:
        await eventually_async(done)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("TOP-2")
async def test_servers_that_come_back_get_everything_oldest_first() -> None:
    servers, naps, buffer = Servers(*[Unavailable("away")] * 9), Naps(), filled(900)
    sending = Sending(buffer, servers, lambda identity: identity.started - 302, sleep=naps)
    await until(sending, lambda: sending.stored_total == 900)
    assert servers.moments == [round((T0 + second) * 1000) for second in range(900)]
    assert servers.taken[0].jobs[0].started == T0 - 307
    assert sending.stored_total == 900
    assert sending.trouble == ""
    assert naps.taken[1:] == sorted(naps.taken[1:]), "longer and longer pauses"
    assert max(naps.taken) <= 15


async def test_large_batches_when_behind() -> None:
    servers, buffer = Servers(), filled(900)
    sending = Sending(buffer, servers, lambda _: T0, sleep=Naps())
    await until(sending, lambda: sending.stored_total == 900)
    assert len(servers.taken) <= 2


async def test_every_batch_fits_on_the_wire() -> None:
    servers, buffer = Servers(), filled(40, width=1000)
    sending = Sending(buffer, servers, lambda _: T0, sleep=Naps())
    await until(sending, lambda: sending.stored_total == 40_000)
    assert all(batch.ByteSize() < 250 * 1024 for batch in servers.taken)
    assert servers.moments == sorted(servers.moments)
    assert len(servers.moments) == 40


async def test_what_is_refused_for_good_is_counted_and_not_sent_again() -> None:
    servers, buffer = (
        Servers(UsageError("what is this"), StoredBatch(3, 2, "not this node's")),
        filled(5),
    )
    sending = Sending(buffer, servers, lambda _: T0, sleep=Naps())
    await until(sending, lambda: sending.refused_total > 0)
    assert sending.refused_total == 5
    buffer.add(snapshot(T0 + 5))
    await until(sending, lambda: sending.refused_total > 5)
    assert (sending.refused_total, sending.stored_total) == (7, 3)


async def test_losses_are_told() -> None:
    servers, buffer = Servers(), filled(3)
    buffer.lost_total = 42
    sending = Sending(buffer, servers, lambda _: T0, sleep=Naps())
    await until(sending, lambda: sending.stored_total == 3)
    assert servers.taken[-1].lost_total == 42


async def test_nodes_send_each_in_their_own_moment() -> None:
    naps, buffer = Naps(), filled(1)
    sending = Sending(
        buffer, Servers(), lambda _: T0, share=0.5, interval_s=lambda: 30.0, sleep=naps
    )
    await until(sending, lambda: sending.stored_total == 1)
    assert naps.taken == [2.5]
    naps.taken.clear()
    buffer.add(snapshot(T0 + 1))
    sending = Sending(
        buffer, Servers(), lambda _: T0, share=0.5, interval_s=lambda: 1.0, sleep=naps
    )
    await until(sending, lambda: sending.stored_total == 1)
    assert naps.taken == [0.5], "in debug it is there within a second"


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    naps, buffer = Naps(), filled(1)
    servers = Servers(RateLimited("later", retry_after_s=20))
    sending = Sending(buffer, servers, lambda _: T0, share=0.5, sleep=naps)
    await until(sending, lambda: sending.stored_total == 1)
    assert naps.taken[1] == 20


@pytest.mark.spec("TOP-2")
async def test_what_is_under_way_at_the_end_is_not_lost() -> None:
    buffer = filled(3)

    class Silent:
        async def store(self, _: OutgoingRows) -> StoredBatch:
            await asyncio.Event().wait()
            raise AssertionError

    await until(Sending(buffer, Silent(), lambda _: T0, sleep=Naps()), lambda: not len(buffer))
    assert len(buffer) == 3


async def test_two_ways_share_a_buffer_and_neither_waits_for_the_other() -> None:
    buffer = filled(10)
    buffer.add(snapshot(T0 + 10, job_id=8))
    away, naps = Servers(*[Unavailable("away")] * 50), Naps()
    stuck = Sending(buffer, away, lambda _: T0, wanted=lambda row: row.identity.job_id == 7)
    servers = Servers()
    other = Sending(
        buffer, servers, lambda _: T0, wanted=lambda row: row.identity.job_id == 8, sleep=naps
    )
    running = asyncio.create_task(stuck.run())
    await until(other, lambda: other.stored_total == 1 and len(naps.taken) > 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [job.job_id for batch in servers.taken for job in batch.jobs] == [8]
    assert (stuck.trouble, other.trouble) == ("away", "")
    assert len(buffer) == 10
    assert set(naps.taken[1:]) <= {0.0, 1.0}, "what is not its own is looked at once a second"
