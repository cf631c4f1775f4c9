"""Telemetry over the link: rows on a stream, batches for older replicas, and what is followed."""

# ruff: noqa: N802, ARG002 - the names and parameters of a service's methods

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.agent.linked_telemetry import LinkedTelemetry
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.metric import Provenance
from lattice.domain.nodejobs import JobIdentity
from lattice.features.link.node.dialler import LinkChannel
from lattice.features.telemetry.convert.batches import StoredBatch
from lattice.features.telemetry.node.buffer import Layout, SampleRow
from lattice.features.telemetry.node.row_messages import OutgoingRows
from lattice.wire.status import grpc_status
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import (
    MetricIntakeServicer,
    add_MetricIntakeServicer_to_server,
)
from tests.eventually import eventually_async

T0 = 1_794_702_390.0
LAYOUT: Layout = (
    ("cpu_seconds_total", (), Provenance.HOST_LOCAL_PROBE),
    ("processes", (), Provenance.HOST_LOCAL_PROBE),
)


class Replica(MetricIntakeServicer):
    """Answers with `answers` in turn, then as if everything were stored."""

    def __init__(self, folder: Path, name: str) -> None:
        self.address = f"unix:{folder}/{name}.sock"
        self.answers: list[pb.StoredSamples | Exception] = []
        self.streams: list[list[pb.SampleRows]] = []
        self.batches: list[pb.SampleBatch] = []
        self.settings: asyncio.Queue[pb.JobsTold] = asyncio.Queue()
        self.silent = False

    async def StreamSamples(
        self, requests: AsyncIterator[pb.SampleRows], context: Any
    ) -> AsyncIterator[pb.StoredSamples]:
        got: list[pb.SampleRows] = []
        self.streams.append(got)
        async for each in requests:
            got.append(each)
            if self.silent:
                await asyncio.Event().wait()
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, UsageError | PermissionRefused):
                await context.abort(*grpc_status(answer))
            elif isinstance(answer, pb.StoredSamples):
                yield answer
            elif answer is not None:
                return
            else:
                yield pb.StoredSamples(stored=sum(len(row.values) // 8 for row in each.rows))

    async def FollowJobs(
        self, request: pb.FollowJobsRequest, context: Any
    ) -> AsyncIterator[pb.JobsTold]:
        while True:
            yield await self.settings.get()

    async def StoreSamples(self, request: pb.SampleBatch, context: Any) -> pb.StoredSamples:
        self.batches.append(request)
        return pb.StoredSamples(stored=2, refused=1, reason="why")

    @asynccontextmanager
    async def serving(self, *, older: bool = False) -> AsyncIterator[Replica]:
        server = aio.server()
        if older:
            server.add_generic_rpc_handlers((self._older(),))
        else:
            add_MetricIntakeServicer_to_server(self, server)
        server.add_insecure_port(self.address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    def _older(self) -> grpc.GenericRpcHandler[Any, Any]:
        store = grpc.unary_unary_rpc_method_handler(
            self.StoreSamples,
            request_deserializer=pb.SampleBatch.FromString,
            response_serializer=pb.StoredSamples.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            "lattice.v1.MetricIntake", {"StoreSamples": store}
        )


class Node:
    """A node that is linked to a replica."""

    def __init__(self) -> None:
        self.link: LinkChannel | None = None
        self.telemetry = LinkedTelemetry(lambda: self.link)

    def link_to(self, replica: Replica) -> None:
        self.link = LinkChannel(replica.address, aio.insecure_channel(replica.address))

    async def store(self, *, lost: int = 0) -> StoredBatch:
        row = SampleRow(
            JobIdentity("b", 7, 1, T0), 1000, LAYOUT, array("d", [1, 2]), array("H", [0, 0])
        )
        return await self.telemetry.store(OutgoingRows([row], lambda each: each.started, lost))


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    async with asyncio.timeout(60), Replica(tmp_path, "r1").serving() as replica:
        yield replica


@pytest.mark.spec("TOP-2")
async def test_rows_go_on_one_stream_to_whoever_holds_the_link(replica: Replica) -> None:
    node = Node()
    node.link_to(replica)
    replica.answers = [pb.StoredSamples(stored=1, refused=1, reason="why")]
    assert await node.store(lost=3) == StoredBatch(1, 1, "why")
    assert await node.store() == StoredBatch(2)
    ((first, second),) = replica.streams
    assert (len(first.layouts), len(second.layouts)) == (1, 0)
    assert first.lost_total == 3
    assert first.layouts[0].started == T0


@pytest.mark.spec("TOP-2")
async def test_names_are_declared_again_to_another_replica(
    replica: Replica, tmp_path: Path
) -> None:
    node = Node()
    node.link_to(replica)
    await node.store()
    async with Replica(tmp_path, "r2").serving() as other:
        node.link_to(other)
        await node.store()
        assert [[len(each.layouts) for each in got] for got in other.streams] == [[1]]


@pytest.mark.spec("TOP-2")
async def test_while_the_store_is_away_rows_are_kept_and_the_stream_stays(replica: Replica) -> None:
    node = Node()
    node.link_to(replica)
    replica.answers = [pb.StoredSamples(again="it does not answer")]
    with pytest.raises(Unavailable, match="it does not answer"):
        await node.store()
    assert await node.store() == StoredBatch(2)
    assert [[len(each.layouts) for each in got] for got in replica.streams] == [[1, 0]]


@pytest.mark.parametrize("error", [UsageError, PermissionRefused])
async def test_a_stream_that_is_refused_is_opened_again(
    replica: Replica, error: type[UsageError | PermissionRefused]
) -> None:
    node = Node()
    node.link_to(replica)
    replica.answers = [error("no")]
    with pytest.raises(error):
        await node.store()
    assert await node.store() == StoredBatch(2)
    assert [[len(each.layouts) for each in got] for got in replica.streams] == [[1], [1]]


async def test_a_stream_that_the_server_ends_is_opened_again(replica: Replica) -> None:
    node = Node()
    node.link_to(replica)
    replica.answers = [EOFError()]
    with pytest.raises(Unavailable, match="has ended the stream"):
        await node.store()
    assert await node.store() == StoredBatch(2)


@pytest.mark.spec("TOP-2")
async def test_what_may_not_have_arrived_is_declared_again(replica: Replica) -> None:
    node = Node()
    node.link_to(replica)
    replica.silent = True
    storing = asyncio.create_task(node.store())
    await eventually_async(lambda: bool(replica.streams and replica.streams[0]))
    storing.cancel()
    await asyncio.gather(storing, return_exceptions=True)
    replica.silent = False
    assert await node.store() == StoredBatch(2)
    assert [[len(each.layouts) for each in got] for got in replica.streams] == [[1], [1]]


@pytest.mark.spec("TOP-2")
async def test_rows_that_a_server_does_not_take_are_sent_again_on_a_new_stream(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.agent.linked_telemetry._STORE_S", 0.05)
    node = Node()
    node.link_to(replica)
    replica.silent = True
    with pytest.raises(Unavailable, match="has not taken samples"):
        await node.store()
    replica.silent = False
    assert await node.store() == StoredBatch(2)
    assert [[len(each.layouts) for each in got] for got in replica.streams] == [[1], [1]]


@pytest.mark.spec("OPS-4")
async def test_an_older_replica_gets_batches_until_the_node_is_linked_anew(tmp_path: Path) -> None:
    node, replica = Node(), Replica(tmp_path, "r1")
    async with asyncio.timeout(60):
        async with replica.serving(older=True):
            node.link_to(replica)
            assert await node.store(lost=3) == StoredBatch(2, 1, "why")
            assert await node.store() == StoredBatch(2, 1, "why")
        assert [each.jobs[0].job_id for each in replica.batches] == [7, 7]
        assert replica.batches[0].lost_total == 3
        async with replica.serving():
            assert await node.store() == StoredBatch(2, 1, "why"), "it asks once a link"
            node.link_to(replica)
            assert await node.store() == StoredBatch(2)
    assert len(replica.streams) == 1


async def test_a_node_without_a_link_says_so() -> None:
    node = Node()
    with pytest.raises(Unavailable, match="not linked"):
        await node.store()
    with pytest.raises(Unavailable, match="not linked"):
        async for _ in node.telemetry.follow():
            pass


@pytest.mark.spec("WATCH-3")
@pytest.mark.parametrize("other", [False, True])
async def test_settings_are_followed_until_the_node_is_linked_anew(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    monkeypatch.setattr("lattice.agent.linked_telemetry._POLL_S", 0)
    node, heard = Node(), []
    node.link_to(replica)

    async def follow() -> None:
        async for each in node.telemetry.follow():
            heard.append(each.usual)  # noqa: PERF401 - looked at meanwhile

    following = asyncio.create_task(follow())
    for usual in ("prod", "audit"):
        replica.settings.put_nowait(pb.JobsTold(usual=usual))
    await eventually_async(lambda: heard == ["prod", "audit"])
    node.link = None  # the link is lost; settings may still come
    for _ in range(20):
        await asyncio.sleep(0)
    assert not following.done()
    node.link_to(Replica(tmp_path, "r2") if other else replica)
    await following
