"""Lanes beside gRPC: the same certificates, tickets and refusals; gRPC where there is no lane."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.domain.peer import server_name
from lattice.domain.stream import Carrier, CarrierLost, Lane, StreamKind, StreamQuestion, digest_of
from lattice.features.link.model import Replica
from lattice.features.link.node.echo import serve_echo
from lattice.server.cluster.lane_listener import MOST_SPARE
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.conduit import Conduit
from lattice.wire.lane import TlsLane
from lattice.wire.v1.link_pb2 import PassTicketAnswer, PassTicketRequest, StreamOpening
from tests.eventually import eventually_async
from tests.integration.link.site import CLUSTER, Agent, Caller, NodeKey, Server, Site

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        yield site


async def dial(server: Server, key: NodeKey) -> TlsLane:
    host, _, port = server.desk.lane_address.rpartition(":")
    _, lane = await asyncio.get_running_loop().create_connection(
        TlsLane,
        host,
        int(port),
        ssl=key.lane_identity().context(server=False),
        server_hostname=server_name(CLUSTER),
    )
    return lane


async def echoed(server: Server, node: str, text: bytes) -> bytes | None:
    caller = Caller(node, [f"127.0.0.1:{server.people_port}"])
    try:
        await caller.conduit.send(text)
        return await asyncio.wait_for(caller.conduit.receive(), 60)
    finally:
        await caller.stop()


@pytest.mark.spec("AUTH-9")
async def test_a_stream_uses_a_lane_and_the_next_finds_one_ready(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    assert await echoed(server, "n1", b"one") == b"one"
    assert not agent.dialling._lanes, "no connection of gRPC was made for it"
    await eventually_async(lambda: agent.dialling._tls._spare is not None)
    assert await echoed(server, "n1", b"two") == b"two"


async def test_where_the_port_is_closed_streams_use_grpc(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server.desk.lane_address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert await echoed(server, "n1", b"one") == b"one"
    assert agent.dialling._lanes
    assert agent.dialling._tls._closed_until


async def test_an_agent_before_lanes_ignores_their_address(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    take = agent.sessions.take

    def without_lanes(ticket: object) -> None:
        ticket.ClearField("lane_dial")  # type: ignore[attr-defined]
        take(ticket)  # type: ignore[arg-type]

    agent.keeper._on_ticket = without_lanes
    await eventually_async(lambda: agent.keeper.line is not None)
    assert await echoed(server, "n1", b"one") == b"one"


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_lane_without_a_certificate_of_the_cluster_is_refused(
    site: Site, tmp_path: Path
) -> None:
    server = await site.server("a")
    folder = tmp_path / "other"
    folder.mkdir()
    paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
    create_identity(paths, site.clock, cluster=CLUSTER)
    other = ClusterAuthority.load(paths.ca_cert, paths.ca_key, site.clock)
    stranger = NodeKey(other, "n1", timedelta(hours=1))
    stranger._bundle = site.authority.bundle
    with pytest.raises((OSError, CarrierLost)):
        await _answer(server, stranger)
    host, _, port = server.desk.lane_address.rpartition(":")
    anonymous = ssl.create_default_context(cadata=site.authority.bundle.decode())
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await _first_byte(host, int(port), anonymous)


async def _answer(server: Server, key: NodeKey) -> bytes:
    lane = await dial(server, key)
    await lane.open_with(StreamOpening(ticket="x"))
    return await lane.receive()


async def _first_byte(host: str, port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=server_name(CLUSTER)
    )
    try:
        writer.write(b"x")
        return await reader.readexactly(1)
    finally:
        writer.close()


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_ticket_of_one_node_opens_no_lane_of_another(site: Site) -> None:
    server = await site.server("a")
    lane = await dial(server, NodeKey(site.authority, "n2", timedelta(hours=1)))
    await lane.open_with(StreamOpening(ticket="0" * 32))
    with pytest.raises(CarrierLost):
        await asyncio.wait_for(lane.receive(), 60)


@pytest.mark.spec("AUTH-9")
async def test_a_node_that_lost_trust_meanwhile_can_not_open_its_spare_lane(site: Site) -> None:
    server = await site.server("a")
    lane = await dial(server, NodeKey(site.authority, "n1", timedelta(hours=1)))
    await eventually_async(lambda: server.lanes.open == 1)
    server.trusted = False
    await lane.open_with(StreamOpening(ticket="0" * 32))
    with pytest.raises(CarrierLost):
        await asyncio.wait_for(lane.receive(), 60)
    assert [rpc for rpc, _, _ in server.refused] == ["lattice.v1.LinkService/Carry"]


@pytest.mark.spec("LIMIT-4")
async def test_lanes_that_are_never_opened_are_bounded(site: Site) -> None:
    server = await site.server("a")
    key = NodeKey(site.authority, "n1", timedelta(hours=1))
    lanes = [await dial(server, key) for _ in range(MOST_SPARE + 3)]
    await eventually_async(lambda: server.lanes.open == MOST_SPARE)
    assert sum(each.usable for each in lanes) == MOST_SPARE


@pytest.mark.spec("LIMIT-4")
async def test_a_frame_that_is_too_large_ends_its_lane_alone(site: Site) -> None:
    server = await site.server("a")
    key = NodeKey(site.authority, "n1", timedelta(hours=1))
    good, bad = await dial(server, key), await dial(server, key)
    assert bad._transport is not None
    bad._transport.write(struct.pack("!I", 1 << 30))
    await eventually_async(lambda: not bad.usable)
    assert good.usable


@pytest.mark.spec("AUTH-9")
async def test_a_shared_stream_uses_a_connection_that_others_use(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    for number in range(2):
        async with server.desk.open(question(site, "n1", shared=True)) as carrier:
            assert isinstance(carrier, GrpcCarrier), number
            assert len(agent.dialling._lanes) == 1
    assert agent.dialling._tls._spare is None


async def test_tickets_for_nodes_of_another_replica_go_together(site: Site) -> None:
    first, second = await site.server("a"), await site.server("b")
    nodes = [f"n{number}" for number in range(6)]
    agents = [site.agent(node, first) for node in nodes]
    await eventually_async(lambda: all(second.desk.linked_to(node) == "a" for node in nodes))
    calls = []
    pass_tickets = second._peers._tickets._call

    async def counted(replica: Replica, request: PassTicketRequest) -> PassTicketAnswer:
        calls.append(1 + len(request.others))
        return await pass_tickets(replica, request)

    second._peers._tickets._call = counted

    async def opened(node: str) -> str:
        async with second.desk.open(question(site, node, shared=True)):
            return node

    assert await asyncio.gather(*map(opened, nodes)) == nodes
    assert sum(calls) == len(agents)
    assert len(calls) == 1


@pytest.mark.spec("AUTH-9")
async def test_only_an_interactive_stream_has_the_next_lane_made_ready(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    for lane in (Lane.BULK, Lane.INTERACTIVE):
        async with server.desk.open(question(site, "n1", lane=lane)) as carrier:
            assert isinstance(carrier, TlsLane)
        assert (agent.dialling._tls._timer is not None) == (lane is Lane.INTERACTIVE)


async def echoed_by(carrier: Carrier, text: bytes) -> bytes | None:
    conduit = Conduit()
    carrying = asyncio.create_task(conduit.carry(carrier))
    try:
        await conduit.send(text)
        return await asyncio.wait_for(conduit.receive(), 60)
    finally:
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


def dialled(agent: Agent) -> list[str]:
    """The connections that the agent makes from now on for streams."""
    made = []
    open_lane, open_channel = agent.dialling._tls.open, agent.dialling._dialled

    async def lane(address: str, **options: bool) -> TlsLane:
        made.append("lane")
        return await open_lane(address, **options)

    def channel(address: str, *options: tuple[str, Any]) -> aio.Channel:
        made.append("channel")
        return open_channel(address, *options)

    agent.dialling._tls.open = lane  # type: ignore[method-assign]
    agent.dialling._dialled = channel  # type: ignore[method-assign]
    return made


@pytest.mark.spec("AUTH-9")
async def test_light_streams_share_the_connections_that_a_node_has_anyway(site: Site) -> None:
    """Of three replicas it has one with the link, and one with the standby connection."""
    servers = [await site.server(name) for name in "abc"]
    serves = dict.fromkeys((StreamKind.METRICS, StreamKind.LOGS), serve_echo)
    agent = Agent(site, "n1", [each.address for each in servers], serves=serves)
    agent.start()
    try:
        await eventually_async(lambda: agent.keeper.line and agent.keeper._standby.address)
        await eventually_async(lambda: all(each.desk.linked_to("n1") for each in servers))
        made = dialled(agent)
        assert agent.keeper.line is not None
        kept = {agent.keeper.line.address, agent.keeper._standby.address}
        for server in servers:
            for kind in serves:
                light = kind is StreamKind.METRICS and server.address in kept
                async with server.desk.open(question(site, "n1", kind=kind)) as carrier:
                    assert isinstance(carrier, GrpcCarrier) == light, (kind, server.name)
                    assert await echoed_by(carrier, b"here") == b"here"
                assert made == ([] if light else ["lane"]), (kind, server.name)
                made.clear()
    finally:
        await agent.stop()


@pytest.mark.spec("AUTH-9", "LOG-7")
async def test_logs_of_many_nodes_share_the_standby_connection_and_not_that_of_the_link(
    site: Site,
) -> None:
    servers = {each.address: each for each in [await site.server(name) for name in "ab"]}
    agent = Agent(site, "n1", list(servers), serves={StreamKind.LOGS: serve_echo})
    agent.start()
    try:
        await eventually_async(lambda: agent.keeper.line and agent.keeper._standby.address)
        await eventually_async(
            lambda: all(each.desk.linked_to("n1") for each in servers.values()),
        )
        assert agent.keeper.line is not None
        made = dialled(agent)
        asked = {"kind": StreamKind.LOGS, "lane": Lane.BULK, "shared": True}
        async with servers[agent.keeper._standby.address].desk.open(
            question(site, "n1", **asked)
        ) as carrier:
            assert await echoed_by(carrier, b"here") == b"here"
            assert made == []
        async with servers[agent.keeper.line.address].desk.open(
            question(site, "n1", **asked)
        ) as carrier:
            assert await echoed_by(carrier, b"here") == b"here"
            assert made == ["channel"]
    finally:
        await agent.stop()


@pytest.mark.spec("AUTH-9")
async def test_a_light_stream_outlasts_the_link_whose_connection_it_uses(site: Site) -> None:
    server = await site.server("a")
    agent = Agent(site, "n1", [server.address], serves={StreamKind.METRICS: serve_echo})
    agent.start()
    try:
        await eventually_async(lambda: agent.keeper.line is not None)
        first = agent.keeper.line
        assert first is not None
        async with server.desk.open(question(site, "n1", kind=StreamKind.METRICS)) as carrier:
            agent.keeper.renew()
            await eventually_async(lambda: agent.keeper.line not in {first, None})
            assert await echoed_by(carrier, b"still") == b"still"
        channel = first._connection.channel
        await eventually_async(lambda: channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)
    finally:
        await agent.stop()


def question(
    site: Site, node: str, *, kind: StreamKind = StreamKind.ECHO, **more: Any
) -> StreamQuestion:
    session = secrets.token_hex(16)
    grant = site.signer.issue(kind.act, node, subject="x", digest=digest_of(session, kind, b""))
    return StreamQuestion(node=node, kind=kind, session=session, opening=b"", grant=grant, **more)
