"""The links of a replica and their routes in the agreed state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.domain.presence import LINKS, NODES, Link, read_link, read_presence, written
from lattice.domain.state import Change, Delete, Expect
from lattice.features.link.model import REPLICAS, Replica
from lattice.features.link.service import routes as routes_module
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.routes import HeldLink, Routes
from lattice.wire.v1.link_pb2 import Hello, Ping
from tests.eventually import eventually_async
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock


class RacedStore(InMemoryStateStore):
    """Somebody else is first with the next deletions."""

    lost_races = 0

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        if self.lost_races and any(isinstance(each, Delete) for each in changes):
            self.lost_races -= 1
            return None
        return await super().commit(expect, changes)


class Scene:
    """One replica and its part of the agreed state."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = RacedStore(self.clock)
        self.links, self.nodes, self.replicas = (
            WatchedStateView(self.store, each, self.clock) for each in (LINKS, NODES, REPLICAS)
        )
        self.membership = Membership(self.store, Replica(id="a", address="a:1", since=0.0))
        self.routes = Routes(self.store, self.links, self.nodes, self.membership, self.clock)
        self.hub = LinkHub(self.routes, self.membership, self.clock, self._quarantine)

    async def _quarantine(self, node: str, why: str) -> None:
        raise AssertionError(f"{node}: {why}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        views = (self.links, self.nodes, self.replicas)
        steps = (*(each.run() for each in views), self.membership.run(), self.hub.tend())
        tasks = [asyncio.ensure_future(each) for each in steps]
        try:
            for view in views:
                await view.wait_first()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def link(self, node: str, connection: str = "") -> AsyncIterator[HeldLink]:
        day = timedelta(days=1)
        peer = PeerIdentity(
            kind=PeerKind.NODE,
            name=node,
            cluster="site",
            serial=1,
            not_before=self.clock.now() - day,
            not_after=self.clock.now() + day,
            generation=1,
        )
        async with self.hub.holding(peer, Hello(node=node), connection) as held:
            yield held

    async def route(self, node: str) -> Link | None:
        entry = await self.store.get(LINKS + node)
        return read_link(node, entry.value) if entry else None


def elsewhere(node: str, epoch: int = 1) -> bytes:
    return written(Link(node=node, replica="b", epoch=epoch, since=0.0))


def received(held: HeldLink) -> list[str]:
    messages = []
    while not held.outbox.empty():
        message = held.outbox.get_nowait()
        messages.append(message.WhichOneof("message") if message else "end")
    return messages


async def test_only_routes_that_changed_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for number in range(200):
        await scene.store.put(f"{LINKS}n{number}", elsewhere(f"n{number}"))
    await scene.links.refresh()
    assert len(scene.routes.update()) == 200
    parsed: list[str] = []

    def counted(node: str, value: bytes) -> Link:
        parsed.append(node)
        return read_link(node, value)

    monkeypatch.setattr(routes_module, "read_link", counted)
    await scene.store.put(LINKS + "n7", elsewhere("n7", epoch=2))
    await scene.store.put(LINKS + "n8", b"nonsense")
    await scene.links.refresh()
    assert sorted(scene.routes.update()) == ["n7", "n8"]
    assert sorted(parsed) == ["n7", "n8"]
    found = scene.routes.of("n7")
    assert found is not None
    assert found.epoch == 2
    assert scene.routes.of("n8") is None
    assert scene.routes.update() == []


async def test_a_link_on_an_idle_connection_counts_once_the_agent_hears_this_replica() -> None:
    scene = Scene()
    async with scene.running():
        scene.hub.standby.note("n1", "ipv4:10.0.0.1:4001")
        async with scene.link("n1", "ipv4:10.0.0.1:4001") as held:
            await asyncio.sleep(0.2)
            assert not held.published
            assert await scene.route("n1") is None
            scene.hub.answer_ping(held, Ping(number=1))
            await eventually_async(lambda: held.published)
        scene.hub.standby.note("n2", "ipv4:10.0.0.2:4001")
        async with scene.link("n2", "ipv4:10.0.0.2:4002") as dialled:
            await eventually_async(lambda: dialled.published)


async def test_a_link_is_published_and_withdrawn_when_it_is_lost() -> None:
    scene = Scene()
    async with scene.running():
        async with scene.link("n1") as held:
            await eventually_async(lambda: held.published)
            route = await scene.route("n1")
            assert route is not None
            assert route.replica == "a"
        scene.clock.advance(3)
        await eventually_async(lambda: scene.route("n1"), lambda route: route is None)
        record = await scene.store.get(NODES + "n1")
        assert record is not None
        assert not read_presence("n1", record.value).linked


async def test_a_route_is_withdrawn_though_others_change_the_record_first() -> None:
    scene = Scene()
    async with scene.running():
        async with scene.link("n1") as held:
            await eventually_async(lambda: held.published)
            scene.store.lost_races = 2
        await eventually_async(lambda: scene.route("n1"), lambda route: route is None)
        assert scene.store.lost_races == 0


async def test_what_changes_while_the_store_is_away_is_written_later() -> None:
    scene = Scene()
    async with scene.running():
        async with scene.link("n1") as lost, scene.link("n2") as old:
            await eventually_async(lambda: lost.published and old.published)
            scene.store.away = True
            await asyncio.sleep(0.2)
        async with scene.link("n3") as young:
            await asyncio.sleep(0.2)
            scene.store.away = False
            await eventually_async(lambda: young.published)
            for node in ("n1", "n2"):
                await eventually_async(
                    lambda node=node: scene.route(node),  # type: ignore[misc]
                    lambda route: route is None,
                )


async def test_a_link_ends_when_the_node_has_a_newer_one_elsewhere() -> None:
    scene = Scene()
    async with scene.running(), scene.link("n1") as held, scene.link("n2") as other:
        await eventually_async(lambda: held.published and other.published)
        received(held), received(other)
        await scene.store.put(LINKS + "n1", elsewhere("n1", epoch=held.epoch + 1))
        await eventually_async(lambda: "n1" not in scene.hub.held)
        assert received(held) == ["leave", "end"]
        await asyncio.sleep(0.2)
        assert received(other) == []
        route = await scene.route("n1")
        assert route is not None
        assert route.replica == "b", "the other's route is not ours to withdraw"


async def test_every_agent_learns_of_a_change_of_the_replicas_once() -> None:
    scene = Scene()
    addresses = ["a:1"]
    async with scene.running(), scene.link("n1") as held:
        await eventually_async(lambda: held.published)
        announcing = asyncio.ensure_future(
            scene.hub.announce_replicas(scene.replicas, lambda: addresses)
        )
        try:
            await eventually_async(lambda: "welcome" in received(held))
            await scene.store.put(REPLICAS + "x", b"unreadable")
            await asyncio.sleep(0.1)
            assert received(held) == []
            addresses = ["a:1", "b:1"]
            await scene.store.put(REPLICAS + "b", b"{}")
            await eventually_async(lambda: not held.outbox.empty())
            message = held.outbox.get_nowait()
            assert message is not None
            assert list(message.welcome.replicas) == ["a:1", "b:1"]
            assert message.welcome.replica == "a"
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
