"""Links that are opened on a connection made in advance, over real certificates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc import aio

from lattice.domain.stream import Carrier, CarrierLost
from lattice.features.link import model as link_model
from lattice.features.link.model import PingTimes
from lattice.features.link.node.dialler import LinkChannel
from lattice.server.listeners.grpc_bounds import AGENT_OPTIONS
from tests.eventually import eventually_async
from tests.integration.link.site import OLGA, Agent, Server, Site

pytestmark = pytest.mark.timeout(180)

_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """Passes bytes on to a port of this machine. Frozen, it only answers TCP."""

    def __init__(self, target: int) -> None:
        self.frozen = False
        self.address = ""
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass((reader, writer)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        # Also if it is cancelled before it has begun.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _pass(self, here: _Ends) -> None:
        with suppress(OSError):
            there = await asyncio.open_connection("127.0.0.1", self._target)
            directions = ((here[0], there[1]), (there[0], here[1]))
            tasks = [asyncio.ensure_future(self._copy(*each)) for each in directions]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                there[1].transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                while self.frozen:
                    await asyncio.sleep(0.05)
                target.write(data)
                await target.drain()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            # One that was accepted just now begins in the next turn of the loop.
            await asyncio.sleep(0.01)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


class Replicas:
    """Servers, each behind a gate of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._by_address: dict[str, tuple[Server, Gate]] = {}

    async def add(self, *names: str) -> None:
        for name in names:
            server = await self._site.server(name)
            gate = Gate(server.port)
            await gate.start()
            server.address = gate.address  # which its welcome names
            self._site._stack.push_async_callback(gate.stop)
            self._by_address[gate.address] = (server, gate)

    @property
    def addresses(self) -> list[str]:
        return list(self._by_address)

    def server(self, address: str) -> Server:
        return self._by_address[address][0]

    def gate(self, address: str) -> Gate:
        return self._by_address[address][1]

    def agent(self, node: str = "n1") -> Agent:
        return self._site.agent(node, addresses=self.addresses)

    def other(self, *addresses: str) -> str:
        (other,) = self._by_address.keys() - set(addresses)
        return other


@pytest.fixture
async def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replicas]:
    monkeypatch.setattr("lattice.features.link.node.redial.STANDBY_WITHIN_S", 0.1)
    monkeypatch.setattr("lattice.features.link.node.standby._CHECK_S", 0.1)
    monkeypatch.setattr("lattice.features.link.node.keeper._PUBLISHED_CHECK_S", 0.1)
    async with Site(tmp_path) as site:
        site.lanes = False
        yield Replicas(site)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        yield site


async def _standing_by(agent: Agent) -> tuple[str, str]:
    """The addresses of the link and of the standby connection."""
    await eventually_async(lambda: agent.keeper.line and agent.keeper._standby.address)
    assert agent.keeper.line is not None
    return agent.keeper.line.address, agent.keeper._standby.address


async def _linked_to(agent: Agent, address: str) -> None:
    await eventually_async(
        lambda: agent.keeper.line is not None and agent.keeper.line.address == address
    )


def _dials(agent: Agent) -> list[str]:
    """The addresses that the agent dials from now on."""
    dialled: list[str] = []
    link_channel = agent.dialling.link_channel

    def counted(address: str) -> LinkChannel:
        dialled.append(address)
        return link_channel(address)

    agent.dialling.link_channel = counted  # type: ignore[method-assign]
    return dialled


@pytest.mark.spec("AUTH-8")
async def test_after_a_replicas_death_the_link_is_opened_without_a_dial(
    replicas: Replicas,
) -> None:
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    assert replicas.server(standby).hub.standby.open == 1
    assert replicas.server(linked).hub.standby.open == 0
    dialled = _dials(agent)
    await replicas.server(linked).stop()
    await _linked_to(agent, standby)
    assert standby not in dialled
    assert replicas.server(standby).hub.standby.open == 0
    assert "n1" in replicas.server(standby).hub.held


async def _kill_one_of_two(replicas: Replicas) -> float:
    """The seconds until the agents of one of two replicas are linked to the other."""
    await replicas.add("a", "b")
    agents = [replicas.agent(f"n{number}") for number in range(12)]
    for agent in agents:
        await _standing_by(agent)
    one, two = (replicas.server(each) for each in replicas.addresses)
    assert one.hub.held
    assert two.hub.held
    begun = time.monotonic()
    await one.stop()
    await eventually_async(lambda: len(two.hub.held) == len(agents))
    return time.monotonic() - begun


@pytest.mark.spec("AUTH-8")
async def test_all_agents_of_a_dead_replica_link_to_the_other(replicas: Replicas) -> None:
    await _kill_one_of_two(replicas)


@pytest.mark.timing
@pytest.mark.spec("AUTH-8")
async def test_agents_of_a_dead_replica_are_linked_again_within_five_seconds(
    replicas: Replicas,
) -> None:
    assert await _kill_one_of_two(replicas) < 5


@pytest.mark.spec("AUTH-8")
async def test_a_frozen_replica_loses_the_link_to_the_standby(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    _probe_often(monkeypatch)
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    replicas.gate(linked).frozen = True
    await _linked_to(agent, standby)
    # The replica has no sign of the agent either.
    await eventually_async(lambda: not replicas.server(linked).hub.held)


@pytest.mark.spec("AUTH-9", "LOG-7")
async def test_grpc_alone_finds_that_the_other_end_of_a_stream_is_frozen(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings of the stream would show it a minute later."""
    _probe_often(monkeypatch)
    await replicas.add("a")
    agent = replicas.agent()
    await eventually_async(lambda: agent.keeper.line is not None)
    (address,) = replicas.addresses
    server = replicas.server(address)
    server.desk._address, server.desk.lane_address = address, ""
    async with server.desk.open(server.probe._question(OLGA, "n1", "ab" * 16, b"")) as carrier:
        replicas.gate(address).frozen = True
        with pytest.raises(CarrierLost):
            await _read_all(carrier)


async def _read_all(carrier: Carrier) -> None:
    while True:
        await carrier.receive()


@pytest.mark.spec("AUTH-8")
async def test_a_replica_that_serves_no_link_but_whose_connections_answer_is_left(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.link.service.hub.PROBED", PingTimes(0.2, 1.0))
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    monkeypatch.setattr(replicas.server(linked).hub, "answer_ping", lambda *_: None)
    await _linked_to(agent, standby)


async def test_a_replica_that_expects_no_probes_keeps_the_link_of_an_agent_that_probes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older replica ends a connection at the third probe to which it has sent nothing."""
    _probe_often(monkeypatch)
    older = tuple(each for each in AGENT_OPTIONS if each not in link_model.ANSWER_OPTIONS)
    monkeypatch.setattr("tests.integration.link.site.AGENT_OPTIONS", older)
    monkeypatch.setattr("lattice.features.link.service.hub.PROBED", PingTimes(0.3, 1.0))
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    line = agent.keeper.line
    assert line is not None
    await eventually_async(lambda: line._number > 12)
    assert agent.keeper.line is line


@pytest.mark.timing
@pytest.mark.spec("AUTH-8")
async def test_a_replica_that_is_frozen_is_left_within_16_s(replicas: Replicas) -> None:
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    replicas.gate(linked).frozen = True
    begun_s = time.monotonic()
    await _linked_to(agent, standby)
    await eventually_async(lambda: not replicas.server(linked).hub.held)
    assert time.monotonic() - begun_s < 16


def _probe_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC finds a silent connection within a second."""
    monkeypatch.setattr("lattice.features.link.model.SILENCE_S", 0.8)
    probes = link_model._probes(0.3)
    monkeypatch.setattr("lattice.features.link.node.dialler.PROBE_OPTIONS", probes)
    answers = (*AGENT_OPTIONS, *probes, ("grpc.http2.min_ping_interval_without_data_ms", 10))
    monkeypatch.setattr("tests.integration.link.site.AGENT_OPTIONS", answers)


@pytest.mark.spec("AUTH-8")
async def test_a_frozen_standby_is_left_for_the_next_replica(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.link.node.redial.STANDBY_PATIENCE_S", 0.5)
    await replicas.add("a", "b", "c")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    replicas.gate(standby).frozen = True
    await replicas.server(linked).stop()
    await _linked_to(agent, replicas.other(linked, standby))


async def test_a_standby_that_does_not_answer_its_call_is_replaced(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.link.node.standby._CALL_EVERY_S", 0.2)
    monkeypatch.setattr("lattice.features.link.node.standby._CALL_S", 2.0)
    await replicas.add("a", "b", "c")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    replicas.gate(standby).frozen = True
    third = replicas.other(linked, standby)
    await eventually_async(lambda: agent.keeper._standby.address == third)
    await _linked_to(agent, linked)


async def test_a_standby_that_died_is_replaced_and_the_link_stays(replicas: Replicas) -> None:
    await replicas.add("a", "b", "c")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    line = agent.keeper.line
    await replicas.server(standby).stop()
    third = replicas.other(linked, standby)
    await eventually_async(lambda: agent.keeper._standby.address == third)
    assert agent.keeper.line is line


async def test_if_link_and_standby_die_together_the_replicas_are_dialled_in_rounds(
    replicas: Replicas,
) -> None:
    await replicas.add("a", "b", "c")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    await asyncio.gather(*(replicas.server(each).stop() for each in (linked, standby)))
    await _linked_to(agent, replicas.other(linked, standby))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_the_standby_connection_of_a_revoked_node_gives_it_nothing(
    replicas: Replicas,
) -> None:
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    server = replicas.server(standby)
    server.trusted = False
    server.hub.expel("n1")
    assert server.hub.standby.open == 0
    await replicas.server(linked).stop()
    await eventually_async(lambda: bool(server.refused))
    await eventually_async(lambda: agent.keeper.line is None)
    assert {rpc for rpc, _, _ in server.refused} <= {
        "lattice.v1.LinkService/Link",
        "lattice.v1.LinkService/Standby",
    }
    assert server.hub.held == {}
    assert server.hub.standby.open == 0


@pytest.mark.spec("AUTH-9")
async def test_a_renewed_identity_has_a_new_link_and_a_new_standby(replicas: Replicas) -> None:
    await replicas.add("a", "b")
    agent = replicas.agent()
    linked, standby = await _standing_by(agent)
    line, dialled = agent.keeper.line, _dials(agent)
    agent.identity.generation += 1
    agent.keeper.renew()
    await eventually_async(lambda: agent.keeper.line not in {None, line})
    assert await _standing_by(agent) == (linked, standby)
    assert set(dialled) == {linked, standby}


async def test_a_replica_that_joins_becomes_the_standby_of_a_linked_agent(
    replicas: Replicas,
) -> None:
    await replicas.add("a")
    (first,) = replicas.addresses
    server = replicas.server(first)
    agent = replicas.agent()
    await _linked_to(agent, first)
    dialled = _dials(agent)
    announcing = asyncio.ensure_future(
        server.hub.announce_replicas(server.replicas, lambda: sorted(replicas.addresses))
    )
    try:
        await replicas.add("b")
        assert await _standing_by(agent) == (first, replicas.other(first))
        assert dialled == [replicas.other(first)]
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)


async def test_a_replica_answers_a_call_that_it_does_not_have_as_the_agent_expects(
    replicas: Replicas,
) -> None:
    """So does an older replica, without the call of a standby connection."""
    await replicas.add("a")
    agent = replicas.agent()
    link = agent.dialling.link_channel(replicas.addresses[0])
    try:
        with pytest.raises(aio.AioRpcError) as refusal:
            await link.channel.unary_unary("/lattice.v1.LinkService/Unknown")(b"")
    finally:
        await link.close()
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
