"""The client against members that answer as told: what is asked again, and what never is."""
# ruff: noqa: N802, ARG002 - gRPC names the methods and their arguments

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.adapters.etcd.members import EtcdTls, Members
from lattice.adapters.etcd.store import EtcdStateStore, store_of
from lattice.adapters.etcd.watch import _Stream
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.adapters.etcd.wire import rpc_pb2_grpc
from lattice.base.clock import SystemClock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import LeaseGone

NO_LEADER = (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
TIMED_OUT = (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out")
LEADER_CHANGED = (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")


class Told(rpc_pb2_grpc.KVServicer):
    """A member that refuses the first calls as told, then answers with its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.calls = 0

    async def Range(self, request: pb.RangeRequest, context: Any) -> pb.RangeResponse:
        await self._met(context)
        return pb.RangeResponse(header=pb.ResponseHeader(revision=self.number))

    async def Put(self, request: pb.PutRequest, context: Any) -> pb.PutResponse:
        await self._met(context)
        return pb.PutResponse(header=pb.ResponseHeader(revision=self.number))

    async def _met(self, context: Any) -> None:
        self.calls += 1
        assert ("hasleader", "true") in [tuple(each) for each in context.invocation_metadata()]
        if self.refusals:
            await context.abort(*self.refusals.pop(0))


class Scene:
    def __init__(self) -> None:
        self.members = [Told(number) for number in (1, 2, 3)]
        self.servers: list[aio.Server] = []
        self.endpoints: list[str] = []
        self.store: EtcdStateStore

    async def start(self) -> None:
        for member in self.members:
            server = aio.server(options=[("grpc.so_reuseport", 0)])
            rpc_pb2_grpc.add_KVServicer_to_server(member, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            self.servers.append(server)
            self.endpoints.append(f"http://127.0.0.1:{port}")

    @property
    def calls(self) -> list[int]:
        return [member.calls for member in self.members]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    await scene.start()
    members = Members(scene.endpoints, EtcdTls(), SystemClock(), first=lambda _count: 0)
    async with store_of(members, SystemClock()) as store:
        scene.store = store
        yield scene
    for server in scene.servers:
        await server.stop(None)


@pytest.mark.parametrize("refusal", [NO_LEADER, TIMED_OUT, LEADER_CHANGED])
async def test_a_read_is_asked_of_the_next(
    scene: Scene, refusal: tuple[grpc.StatusCode, str]
) -> None:
    scene.members[0].refusals = [refusal]
    assert (await scene.store.list("")).revision == 2
    assert (await scene.store.list("")).revision == 2  # and the next one begins there
    assert scene.calls == [1, 2, 0]


async def test_a_change_is_sent_again_only_if_it_was_certainly_not_done(scene: Scene) -> None:
    scene.members[0].refusals = [NO_LEADER]
    assert await scene.store.put("a", b"") == 2
    assert scene.calls == [1, 1, 0]


@pytest.mark.parametrize("refusal", [TIMED_OUT, LEADER_CHANGED, (grpc.StatusCode.UNKNOWN, "?")])
async def test_a_change_that_may_have_happened_is_told(
    scene: Scene, refusal: tuple[grpc.StatusCode, str]
) -> None:
    scene.members[0].refusals = [refusal]
    with pytest.raises(Unavailable, match="it may have happened or not") as error:
        await scene.store.put("a", b"")
    assert error.value.hint
    assert scene.calls == [1, 0, 0]
    assert await scene.store.put("a", b"") == 2


async def test_a_member_that_is_gone_costs_nothing_but_a_moment(scene: Scene) -> None:
    assert await scene.store.put("a", b"") == 1
    await scene.servers[0].stop(None)
    assert await scene.store.put("a", b"") == 2
    assert await scene.store.put("a", b"") == 2


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        ((grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found"), LeaseGone, "lease"),
        (
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"),
            Unavailable,
            "is full",
        ),
        (
            (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied"),
            Unavailable,
            "refuses the server: permission denied",
        ),
    ],
)
async def test_what_every_member_would_say_is_said_at_once(
    scene: Scene, refusal: tuple[grpc.StatusCode, str], kind: type[Unavailable], said: str
) -> None:
    scene.members[0].refusals = [refusal]
    with pytest.raises(kind, match=said) as error:
        await scene.store.put("a", b"")
    assert error.value.hint
    assert scene.calls == [1, 0, 0]


def test_no_member_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(ConfigurationError, match="No member"):
        Members([], EtcdTls(), SystemClock())


async def test_files_that_can_not_be_read_are_named(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.crt can't be read"):
        Members(["https://127.0.0.1:1"], EtcdTls(ca=tmp_path / "none.crt"), SystemClock())


def _response(*revisions: int, fragment: bool) -> pb.WatchResponse:
    events = [pb.Event(kv=pb.KeyValue(mod_revision=each)) for each in revisions]
    return pb.WatchResponse(events=events, fragment=fragment)


async def test_a_revision_in_fragments_is_handed_out_whole(scene: Scene) -> None:
    members = Members(scene.endpoints, EtcdTls(), SystemClock())
    stream = _Stream(await members.choose())
    told = [
        (revision, len(list(events)))
        for response in (
            _response(5, 6, 6, fragment=True),
            _response(6, fragment=True),
            _response(6, 7, fragment=True),
            _response(7, 8, fragment=False),
            _response(9, fragment=False),
        )
        for revision, events in stream.whole(response)
    ]
    assert told == [(5, 1), (6, 4), (7, 2), (8, 1), (9, 1)]
    await stream.aclose()
    await members.aclose()
    await asyncio.sleep(0)
