"""Links and streams between replicas and agents, over real certificates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lattice.access.actor import Actor, Role
from lattice.access.grants import GrantSigner
from lattice.access.limits import DEFAULTS, Questions, owner_of
from lattice.base.errors import NotFound, PermissionRefused, RateLimited, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.node import HealthState, NodeHealth
from lattice.domain.presence import LINKS, NODES, read_link, read_presence
from lattice.domain.stream import CarrierLost, StreamQuestion
from lattice.features.link.node.echo import pattern
from lattice.features.link.service.broker import _Awaited
from lattice.features.link.service.probe import ProbeService
from lattice.wire.v1.link_pb2 import NodeHealth as PbHealth
from lattice.wire.v1.link_pb2 import Ping, StreamOpening, Ticket
from tests.eventually import eventually_async
from tests.integration.link.site import (
    OLGA,
    Agent,
    Caller,
    Server,
    Site,
    free_port,
)

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(params=["lanes", "grpc"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        site.lanes = request.param == "lanes"
        yield site


def _published(server: Server, node: str) -> bool:
    held = server.hub.held.get(node)
    return held is not None and held.published


@pytest.mark.spec("AUTH-9")
async def test_an_agent_links_and_is_published_with_an_epoch(site: Site) -> None:
    server = await site.server("a")
    site.agent("n1", server)
    await eventually_async(lambda: _published(server, "n1"))
    entry = await site.store.get(LINKS + "n1")
    assert entry is not None
    assert entry.lease == server.membership.lease
    link = read_link("n1", entry.value)
    assert (link.replica, link.epoch) == ("a", 1)
    record = await site.store.get(NODES + "n1")
    assert record is not None
    assert read_presence("n1", record.value).linked


async def _health(site: Site, node: str) -> NodeHealth:
    entry = await site.store.get(NODES + node)
    assert entry is not None
    return read_presence(node, entry.value).health


@pytest.mark.story
@pytest.mark.spec("OPS-10")
async def test_a_nodes_health_is_written_down_when_it_changes_and_only_then(site: Site) -> None:
    server = await site.server("a")
    site.agent("n1", server)
    await eventually_async(lambda: _published(server, "n1"))
    assert await _health(site, "n1") == NodeHealth()
    held = server.hub.held["n1"]
    said = PbHealth(health="failure", words=["GPU-a is lost\x1b[2J", *["more"] * 20])
    server.hub.answer_ping(held, Ping(number=1, health=said))
    assert held.waits
    await eventually_async(lambda: not held.waits)
    written = await _health(site, "n1")
    assert written.health is HealthState.FAILURE
    assert written.words[0] == "GPU-a is lost␛[2J"
    assert len(written.words) == 8
    entry = await site.store.get(NODES + "n1")
    server.hub.answer_ping(held, Ping(number=2, health=said))
    server.hub.answer_ping(held, Ping(number=3))
    assert not held.waits
    # Nor does one that changes its mind all the time get to write all the time.
    server.hub.answer_ping(held, Ping(number=4, health=PbHealth(health="healthy")))
    assert not held.waits
    assert await site.store.get(NODES + "n1") == entry


async def test_a_ping_is_measured_through_either_replica(site: Site) -> None:
    one, two = await site.server("a"), await site.server("b")
    agent = site.agent("n1", one)
    await eventually_async(lambda: _published(one, "n1"))
    await eventually_async(lambda: LINKS + "n1" in two.links.entries)
    for server in (one, two):
        reach = await server.probe.ping(OLGA, "n1", 3)
        assert (reach.linked_to, reach.measured_by) == ("a", server.name)
        assert len(reach.round_trips_ms) == 3
        assert all(each > 0 for each in reach.round_trips_ms)
    assert agent.keeper.line is not None


async def test_a_node_nobody_knows_is_said_in_words(site: Site) -> None:
    server = await site.server("a")
    await server.nodes.wait_first()
    with pytest.raises(NotFound, match="No agent of node n9 has ever linked"):
        await server.probe.ping(OLGA, "n9", 1)


async def _stop_one_of_two_servers(site: Site) -> float:
    """The seconds until all agents can be found at the other one."""
    one, two = await site.server("a"), await site.server("b")
    agents = [site.agent(f"n{number}", one, two) for number in range(12)]
    await eventually_async(lambda: len(one.hub.held) + len(two.hub.held) == 12)
    assert one.hub.held
    assert two.hub.held
    begun = time.monotonic()
    await one.stop()
    await eventually_async(lambda: len(two.hub.held) == 12)
    await eventually_async(lambda: all(_published(two, agent.node) for agent in agents))
    took_s = time.monotonic() - begun
    for agent in agents:
        entry = await site.store.get(LINKS + agent.node)
        assert entry is not None
        assert read_link(agent.node, entry.value).replica == "b"
    return took_s


async def test_a_server_that_goes_loses_its_routes_and_its_agents_link_elsewhere(
    site: Site,
) -> None:
    await _stop_one_of_two_servers(site)


@pytest.mark.timing
async def test_agents_of_a_server_that_goes_link_elsewhere_within_twelve_seconds(
    site: Site,
) -> None:
    assert await _stop_one_of_two_servers(site) < 12


async def test_a_stream_goes_on_at_another_replica(site: Site) -> None:
    one, two = await site.server("a"), await site.server("b")
    agent = site.agent("n1", one, two)
    await eventually_async(lambda: agent.keeper.line is not None)
    addresses = [f"127.0.0.1:{each.people_port}" for each in (one, two)]
    caller = Caller("n1", addresses)
    sent, got = [], []
    for number in range(40):
        message = number.to_bytes(4, "big") * 100
        await caller.conduit.send(message)
        sent.append(message)
        if number == 20:
            await one.stop()
        got.append(await caller.conduit.receive())
    await caller.conduit.send(b"", last=True)
    assert await caller.conduit.receive() is None
    await caller.finished()
    assert got == sent
    assert caller.connections >= 2


async def test_a_slow_reader_slows_the_node_and_nothing_piles_up(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    total = 24 * 1024 * 1024
    opening = msgspec.json.encode({"flood_bytes": total})
    caller = Caller("n1", [f"127.0.0.1:{server.people_port}"], opening)
    await eventually_async(lambda: agent.sessions._sessions)
    await asyncio.sleep(0.5)
    (session,) = agent.sessions._sessions.values()
    assert session.conduit._pipe._written_bytes < 3 * 1024 * 1024
    at = 0
    while (chunk := await caller.conduit.receive()) is not None:
        assert chunk == pattern(at, len(chunk))
        at += len(chunk)
    assert at == total
    await caller.conduit.send(b"", last=True)
    await caller.finished()


@pytest.mark.story
@pytest.mark.spec("AUTH-8")
async def test_a_stream_whose_token_no_longer_holds_ends_and_goes_on_with_a_fresh_one(
    site: Site,
) -> None:
    site.recheck_every_s = 0.2
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    caller = Caller("n1", [f"127.0.0.1:{server.people_port}"])
    await caller.conduit.send(b"before")
    assert await caller.conduit.receive() == b"before"
    site.allowed = False
    await eventually_async(lambda: bool(caller.why))
    assert "no longer holds" in caller.why[0]
    await caller.conduit.send(b"meanwhile")
    await asyncio.sleep(0.3)
    site.allowed = True
    assert await caller.conduit.receive() == b"meanwhile"
    await caller.stop()


@pytest.mark.story
@pytest.mark.spec("OPS-1")
async def test_a_stream_whose_caller_can_not_be_checked_now_goes_on(site: Site) -> None:
    site.recheck_every_s = 0.1
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    caller = Caller("n1", [f"127.0.0.1:{server.people_port}"])
    await caller.conduit.send(b"before")
    assert await caller.conduit.receive() == b"before"
    site.unknown_checks = 3
    await eventually_async(lambda: site.unknown_checks == 0)
    await caller.conduit.send(b"after")
    assert await caller.conduit.receive() == b"after"
    assert caller.why == []
    await caller.stop()


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_certificate_of_one_node_can_not_speak_as_another(site: Site) -> None:
    server = await site.server("a")
    agent = Agent(site, "n1", [server.address])
    agent.keeper._me = replace(agent.keeper._me, node="n2")
    agent.start()
    try:
        await eventually_async(lambda: bool(server.quarantined))
        assert server.quarantined[0][0] == "n1"
        assert "n2" in server.quarantined[0][1]
        assert server.hub.held == {}
        assert await site.store.get(LINKS + "n2") is None
    finally:
        await agent.stop()


async def test_while_the_store_is_away_links_stand_and_are_published_later(site: Site) -> None:
    server = await site.server("a")
    await eventually_async(lambda: bool(server.membership.lease))
    server.store.away = True
    agent = site.agent("n1", server)
    await eventually_async(lambda: "n1" in server.hub.held and agent.keeper.line is not None)
    assert not server.hub.held["n1"].published
    assert (await server.probe.ping(OLGA, "n1", 1)).linked_to == "a"
    server.store.away = False
    await eventually_async(lambda: _published(server, "n1"))


async def test_an_agent_leaves_a_replica_that_was_cut_off_from_the_store_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.link.node.keeper._UNPUBLISHED_S", 0.5)
    monkeypatch.setattr("lattice.features.link.node.keeper._SCOUT_EVERY_S", 1.0)
    one, two = await site.server("a"), await site.server("b")
    await eventually_async(lambda: bool(one.membership.lease and two.membership.lease))
    agent = site.agent("n1", one)
    await eventually_async(lambda: _published(one, "n1") and agent.keeper.line is not None)
    agent.keeper._redial.set_replicas([one.address, two.address])
    one.store.away = True
    await eventually_async(lambda: _published(two, "n1"))
    await eventually_async(lambda: "n1" not in one.hub.held)


async def test_an_agent_that_no_one_else_can_find_looks_for_a_replica_that_can_be_found(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice.features.link.node.keeper._UNPUBLISHED_S", 0.5)
    monkeypatch.setattr("lattice.features.link.node.keeper._SCOUT_EVERY_S", 1.0)
    one, two = await site.server("a"), await site.server("b")
    await eventually_async(lambda: bool(one.membership.lease and two.membership.lease))
    one.store.away = True
    agent = site.agent("n1", one)
    await eventually_async(lambda: "n1" in one.hub.held)
    # The server's welcome names the servers, too: what is told before it does not last.
    await eventually_async(lambda: agent.keeper.line is not None)
    agent.keeper._redial.set_replicas([one.address, two.address])
    await eventually_async(lambda: _published(two, "n1"))
    await eventually_async(
        lambda: agent.keeper.line is not None and agent.keeper.line.address == two.address
    )
    await eventually_async(lambda: "n1" not in one.hub.held)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("replica-certificate")
async def test_a_replica_that_can_not_sign_grants_gets_nothing_of_a_node(
    site: Site, tmp_path: Path
) -> None:
    """Attack 1: a valid certificate of a replica, dialled by the node itself, and no grant."""
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    forger = GrantSigner(SigningKey.generate(), site.clock)
    rogue = ProbeService(server.desk, forger, site.clock, "a")
    with pytest.raises(PermissionRefused, match="The grant does not hold"):
        await rogue.ping(OLGA, "n1", 1)
    assert agent.sessions.open == 0
    assert (await server.probe.ping(OLGA, "n1", 1)).node == "n1"


@pytest.mark.spec("AUTH-9", "CLI-2")
async def test_an_agent_that_knows_no_key_yet_waits_and_then_asks_to_try_again(site: Site) -> None:
    """With files made elsewhere it learns the keys by its first renewal, some seconds later."""
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    agent.checker.trust(())
    asked = asyncio.create_task(server.probe.ping(OLGA, "n1", 1))
    await asyncio.sleep(0.2)
    assert not asked.done()
    agent.checker.trust(site.signer.public_keys)
    assert (await asked).node == "n1"
    agent.checker.trust(())
    agent.sessions._key_polls = 1
    with pytest.raises(Unavailable, match="does not know the servers' keys yet"):
        await server.probe.ping(OLGA, "n1", 1)


@pytest.mark.spec("AUTH-9")
async def test_a_grant_is_for_one_question_once(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    question = server.probe._question(OLGA, "n1", "ab" * 16, b"")
    async with server.desk.open(question):
        pass
    for replayed in (
        question,
        replace(question, session="cd" * 16),
        replace(question, opening=b'{"flood_bytes":1}'),
    ):
        with pytest.raises(PermissionRefused, match="The grant does not hold"):
            await _opened(server, replayed)


@pytest.mark.spec("AUTH-9")
async def test_a_ticket_that_comes_twice_is_served_once(site: Site) -> None:
    """A replica sends it again if the answer of another replica is late. It was refused then."""
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    hand = server.hub.hand

    def twice(node: str, epoch: int, ticket: Ticket) -> None:
        hand(node, epoch, ticket)
        hand(node, epoch, ticket)

    server.hub.hand = twice  # type: ignore[method-assign]
    for _ in range(20):
        reach = await server.probe.ping(OLGA, "n1", 1)
        assert len(reach.round_trips_ms) == 1
    await eventually_async(lambda: not agent.sessions._answering)


async def _opened(server: Server, question: StreamQuestion) -> None:
    async with server.desk.open(question):
        pass


@pytest.mark.spec("AUTH-9")
async def test_a_session_goes_on_for_its_own_caller_alone(site: Site) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    session = "ef" * 16
    async with server.desk.open(server.probe._question(OLGA, "n1", session, b"")):
        await eventually_async(lambda: agent.sessions.open == 1)
    mallory = Actor(sub="mallory", role=Role.OPERATOR)
    for resume in (True, False):
        question = server.probe._question(mallory, "n1", session, b"", resume=resume)
        with pytest.raises(NotFound):
            await _opened(server, question)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_ticket_of_one_node_is_worth_nothing_in_anothers_hands(site: Site) -> None:
    """Attack 20, as far as a node can reach: it comes with what was meant for another."""
    server = await site.server("a")
    thief = site.agent("n2", server)
    await eventually_async(lambda: thief.keeper.line is not None)
    awaited = _Awaited("n1", asyncio.get_running_loop().create_future())
    server.desk._awaited["stolen"] = awaited
    ticket = Ticket(id="stolen", dial=server.address, lane_dial=server.desk.lane_address)
    async with thief.dialling.carrier(ticket) as carrier:
        await carrier.open_with(StreamOpening(ticket="stolen"))
        with pytest.raises(CarrierLost, match=None if site.lanes else "No such ticket"):
            await carrier.receive()
    assert not awaited.carrier.done()


async def _ping_beside_a_bulk_transfer(site: Site) -> float:
    """The longest round trip, in milliseconds."""
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    address = f"127.0.0.1:{server.people_port}"
    opening = msgspec.json.encode({"flood_bytes": 1 << 30})
    bulk = Caller("n1", [address], opening)
    await bulk.conduit.receive()
    # The reader of the bulk stops: its lane is full to the brim, and stays so.
    await asyncio.sleep(0.3)
    reach = await server.probe.ping(OLGA, "n1", 20)
    assert {lane for _, lane in agent.dialling._lanes} == (set() if site.lanes else {0, 1})
    await bulk.stop()
    return max(reach.round_trips_ms)


async def test_a_person_at_a_terminal_does_not_wait_behind_a_bulk_transfer(site: Site) -> None:
    await _ping_beside_a_bulk_transfer(site)


@pytest.mark.timing
async def test_beside_a_bulk_transfer_a_round_trip_takes_less_than_a_second(site: Site) -> None:
    assert await _ping_beside_a_bulk_transfer(site) < 1000


async def test_a_node_that_is_not_believed_any_more_loses_its_link_and_streams(
    site: Site,
) -> None:
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: _published(server, "n1"))
    caller = Caller("n1", [f"127.0.0.1:{server.people_port}"])
    await caller.conduit.send(b"x")
    assert await caller.conduit.receive() == b"x"
    server.hub.expel("n1")
    server.desk.expel("n1")
    await eventually_async(lambda: bool(caller.why))
    await eventually_async(lambda: agent.keeper.line is None)
    await caller.stop()


@pytest.mark.story
@pytest.mark.spec("LIMIT-1", "LIMIT-2")
async def test_a_rate_is_one_over_all_replicas_and_a_death_grants_one_fresh_bucket(
    site: Site,
) -> None:
    """Attack 23: whichever replica is asked, there is one bucket for one caller."""
    servers = [await site.server("a"), await site.server("b")]
    for server in servers:
        await eventually_async(lambda server=server: len(_replicas(server)) == 2)
    kind, sub = Questions.COMPARE, "alice-sub"
    granted = 0
    for number in range(40):
        with suppress(RateLimited):
            await servers[number % 2].rates.ask(sub, kind)
            granted += 1
    assert granted == DEFAULTS[kind]
    assert [server.rates.stood_in_total for server in servers] == [0, 0]
    with pytest.raises(RateLimited) as refusal:
        await servers[0].rates.ask(sub, kind)
    assert (refusal.value.retry_after_s or 0) >= 1
    # Another spelling is another caller; nobody else's bucket is touched.
    await servers[0].rates.ask("Alice-sub", kind)
    owner = owner_of(sub, kind, ["a", "b"])
    dying, living = servers if owner == "a" else reversed(servers)
    await dying.stop()
    await eventually_async(lambda: len(_replicas(living)) == 1)
    again = 0
    for _ in range(40):
        with suppress(RateLimited):
            await living.rates.ask(sub, kind)
            again += 1
    assert again == DEFAULTS[kind]


def _replicas(server: Server) -> list[str]:
    try:
        return sorted(server.replicas.entries)
    except Unavailable:
        return []


async def test_a_session_whose_caller_never_comes_is_given_up(site: Site) -> None:
    site.wait_s = 0.3
    server = await site.server("a")
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    question = server.probe._question(OLGA, "n1", "ab" * 16, b"")
    # Nobody listens where the agent is told to dial.
    ticket = Ticket(
        id="x", dial=f"127.0.0.1:{free_port()}", kind="echo", session=question.session,
        grant=question.grant,
    )  # fmt: skip
    agent.sessions.take(ticket)
    await eventually_async(lambda: agent.sessions.open == 1)
    await eventually_async(lambda: agent.sessions.open == 0)


async def _link_where_one_server_refuses(site: Site) -> float:
    server = await site.server("a")
    begun = time.monotonic()
    dead = f"127.0.0.1:{free_port()}"
    for number in range(4):
        site.agent(f"n{number}", addresses=[dead, server.address])
    await eventually_async(lambda: len(server.hub.held) == 4)
    return time.monotonic() - begun


async def test_agents_link_where_one_server_refuses(site: Site) -> None:
    await _link_where_one_server_refuses(site)


@pytest.mark.timing
async def test_a_server_that_refuses_costs_an_agent_less_than_five_seconds(site: Site) -> None:
    # Whichever comes first for each of them, nobody waits out the patience for a slow server.
    assert await _link_where_one_server_refuses(site) < 5
