"""Chunks on their way in: refused by their head, few at once, and within a quota."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from lattice.base.errors import (
    LatticeError,
    PermissionRefused,
    RateLimited,
    Unavailable,
    UsageError,
)
from lattice.domain.logchunk import LARGEST_CHUNK_BYTES
from lattice.domain.logs import Gap, GapCause, Position
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.logs.service.chunk_admission import ChunkSlots
from lattice.features.logs.service.intake import LogIntake
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.wire import peerguard
from lattice.wire.v1 import logs_pb2 as pb
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock
from tests.unit.domain.test_logchunk import chunk_of
from tests.unit.features.logs.test_intake import Site


class Sender:
    """A node's stream: what of it was taken, and a gate before its body."""

    def __init__(self, site: Site, content: bytes, **head: object) -> None:
        facts = {
            "job_id": 7, "started": site.started + 0.5, "kind": "stdout", "source": "batch",
            "number": 1, "size_bytes": len(content),
        }  # fmt: skip
        self._head = pb.ChunkHead(**facts | head)  # type: ignore[arg-type]
        self._content = content
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.asked_for_body = False

    async def parts(self) -> AsyncIterator[pb.ChunkPart]:
        yield pb.ChunkPart(head=self._head)
        self.asked_for_body = True
        await self.may_go_on.wait()
        for begin in range(0, len(self._content), 100):
            yield pb.ChunkPart(body=self._content[begin : begin + 100])


async def send(rpc: LogIntakeRpc, sender: Sender, node: str = "n1") -> int:
    peerguard._PEER.set(_peer(node))
    stored = await rpc.StoreChunk(sender.parts(), None)
    return int(stored.number)


def _peer(node: str) -> PeerIdentity:
    moment = ManualClock().now()
    return PeerIdentity(
        kind=PeerKind.NODE, name=node, cluster="c", serial=1, not_before=moment, not_after=moment
    )


@pytest.fixture
def site() -> Site:
    return Site()


def rpc_of(site: Site, quota_bytes: int = 0, **more: object) -> LogIntakeRpc:
    site.intake = LogIntake(
        AttemptFinder(site.scheduler, site.clock), site.files, site.objects, site.intake._signer,
        site.refused, site.clock, site.seals, quota_bytes=quota_bytes,
    )  # fmt: skip
    return LogIntakeRpc(site.intake, **more)  # type: ignore[arg-type]


@pytest.mark.spec("LIMIT-4", "LOG-1")
async def test_a_chunk_in_parts_is_stored(site: Site) -> None:
    content = chunk_of(b"hello\n" * 100)
    assert await send(rpc_of(site), Sender(site, content)) == 1
    assert len(site.keys) == 1


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("node-flood")
@pytest.mark.parametrize(
    ("lie", "error"),
    [
        ({"job_id": 8}, PermissionRefused),
        ({"started": 5.0}, PermissionRefused),
        ({"kind": "stdin"}, PermissionRefused),
        ({"source": "../x"}, PermissionRefused),
        ({"number": 0}, PermissionRefused),
        ({"size_bytes": 0}, UsageError),
        ({"size_bytes": LARGEST_CHUNK_BYTES + 1}, UsageError),
    ],
)
async def test_what_is_not_taken_is_refused_at_its_head(
    site: Site, lie: dict[str, object], error: type[LatticeError]
) -> None:
    """Attack 40: no byte of a chunk is taken for a job that did not run there."""
    sender = Sender(site, chunk_of(b"hello\n"), **lie)
    with pytest.raises(error):
        await send(rpc_of(site), sender)
    assert not sender.asked_for_body
    assert site.keys == []


@pytest.mark.spec("LIMIT-4")
async def test_a_stream_without_a_head_is_refused(site: Site) -> None:
    async def headless() -> AsyncIterator[pb.ChunkPart]:
        yield pb.ChunkPart(body=b"x")

    peerguard._PEER.set(_peer("n1"))
    with pytest.raises(UsageError, match="begins with its head"):
        await rpc_of(site).StoreChunk(headless(), None)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("node-flood")
async def test_a_node_sends_two_chunks_at_once_and_no_third(site: Site) -> None:
    rpc = rpc_of(site)
    senders = [Sender(site, chunk_of(b"%d\n" % n), number=n) for n in (1, 2, 3)]
    for each in senders[:2]:
        each.may_go_on.clear()
    running = [asyncio.create_task(send(rpc, each)) for each in senders[:2]]
    await eventually_async(lambda: all(each.asked_for_body for each in senders[:2]))
    with pytest.raises(RateLimited):
        await send(rpc, senders[2])
    for each in senders[:2]:
        each.may_go_on.set()
    assert await asyncio.gather(*running) == [1, 2]
    assert await send(rpc, senders[2]) == 3


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("node-flood")
async def test_all_nodes_together_have_a_few_chunks_in_memory_and_wait_in_turn(site: Site) -> None:
    rpc = rpc_of(site, slots=ChunkSlots(in_memory=2, per_node=100))
    senders = [Sender(site, chunk_of(b"%d\n" % n), number=n) for n in range(1, 7)]
    for each in senders:
        each.may_go_on.clear()
    running = []
    for count, each in enumerate(senders, 1):
        running.append(asyncio.create_task(send(rpc, each)))
        await eventually_async(lambda count=count: rpc._slots._streams["n1"] == count)  # type: ignore[misc]
    for count in range(2, 7):
        await eventually_async(
            lambda: [each.asked_for_body for each in senders],
            lambda seen, count=count: seen == [True] * count + [False] * (6 - count),  # type: ignore[misc]
        )
        senders[count - 2].may_go_on.set()
    senders[-1].may_go_on.set()
    assert await asyncio.gather(*running) == [1, 2, 3, 4, 5, 6]


@pytest.mark.spec("LIMIT-4")
async def test_a_chunk_that_does_not_come_gives_its_room_back(site: Site) -> None:
    rpc = rpc_of(site, slots=ChunkSlots(in_memory=1), arrive_s=0.01)
    slow = Sender(site, chunk_of(b"slow\n"))
    slow.may_go_on.clear()
    with pytest.raises(Unavailable, match="did not arrive"):
        await send(rpc, slow)
    rpc._arrive_s = 60.0
    assert await send(rpc, Sender(site, chunk_of(b"quick\n"))) == 1


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("node-flood")
@pytest.mark.parametrize("size", [-1, 1])
async def test_a_chunk_of_another_size_than_its_head_names_is_refused(
    site: Site, size: int
) -> None:
    content = chunk_of(b"hello\n")
    with pytest.raises(UsageError, match="as large as its head"):
        await send(rpc_of(site), Sender(site, content, size_bytes=len(content) + size))
    assert site.keys == []


@pytest.mark.spec("LIMIT-4", "LOG-3")
@pytest.mark.threat("node-flood")
async def test_the_quota_of_a_job_is_what_the_store_holds(site: Site) -> None:
    """Also of what a replica before this one had stored; the same chunk again counts once."""
    chunks = [chunk_of(b"%d\n" % n) for n in range(1, 5)]
    size = len(chunks[0])
    before = rpc_of(site)
    assert await send(before, Sender(site, chunks[0])) == 1
    rpc = rpc_of(site, quota_bytes=3 * size)
    for _ in range(5):
        assert await send(rpc, Sender(site, chunks[1], number=2)) == 2
    assert await send(rpc, Sender(site, chunks[2], number=3)) == 3
    over = Sender(site, chunks[3], number=4)
    with pytest.raises(PermissionRefused, match="quota of job 7 on n1"):
        await send(rpc, over)
    assert not over.asked_for_body
    assert len(site.keys) == 3
    assert site.refused.told[-1][:2] == ("StoreChunk", "n1")


@pytest.mark.spec("LIMIT-4")
async def test_what_other_replicas_store_counts_after_a_while(site: Site) -> None:
    chunks = [chunk_of(b"%d%d\n" % (n // 10, n % 10)) for n in range(40)]
    quota = 16 * len(chunks[0])
    replicas = [rpc_of(site, quota_bytes=quota) for _ in range(2)]
    refused = 0
    for number, chunk in enumerate(chunks, 1):
        try:
            await send(replicas[number % 2], Sender(site, chunk, number=number))
        except PermissionRefused:
            refused += 1
    assert refused >= 20
    assert len(site.keys) <= 20


@pytest.mark.spec("LOG-3")
async def test_a_node_that_stopped_at_its_own_quota_still_tells_of_the_gap(site: Site) -> None:
    """The overhead over the quota is for what holds no text."""
    text = random.Random(1).randbytes(60_000)
    full = chunk_of(text)
    rpc = rpc_of(site, quota_bytes=len(full))
    assert await send(rpc, Sender(site, full)) == 1
    gap = Gap(Position(len(text), 1), GapCause.QUOTA, 5_000, 2_000)
    telling = chunk_of(offset=len(text), line=1, gaps=(gap,), last=True)
    assert await send(rpc, Sender(site, telling, number=2)) == 2
