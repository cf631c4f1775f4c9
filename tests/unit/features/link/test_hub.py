"""The links of a replica and their routes in the agreed state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import Unavailable
from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.domain.presence import LINKS, NODES, Link, read_link, read_presence, written
from lattice.domain.state import Change, Delete, Expect
from lattice.features.link.model import REPLICAS, Replica
from lattice.features.link.service import routes as routes_module
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.routes import HeldLink, Routes
from lattice.wire.v1.link_pb2 import Hello, LinkDown, Ping, Pong
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
    async def link(
        self, node: str, connection: str = "", *, probes: bool = False
    ) -> AsyncIterator[HeldLink]:
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
        async with self.hub.holding(peer, Hello(node=node, probes=probes), connection) as held:
            yield held

    async def route(self, node: str) -> Link | None:
        entry = await self.store.get(LINKS + node)
        return read_link(node, entry.value) if entry else None


def elsewhere(node: str, epoch: int = 1) -> bytes:
    return written(Link(node=node, replica="b", epoch=epoch, since=0.0))


class Line:
    """What an agent was sent."""

    def __init__(self, held: HeldLink) -> None:
        self.messages: list[LinkDown] = []
        self.ended = False
        held.open(self)

    async def write(self, message: LinkDown, /) -> None:
        self.messages.append(message)

    def end(self) -> None:
        self.ended = True

    def received(self) -> list[str | None]:
        messages, self.messages = self.messages, []
        return [each.WhichOneof("message") for each in messages] + ["end"] * self.ended


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
        ours, others = Line(held), Line(other)
        await eventually_async(lambda: ours.messages and others.messages)
        ours.received(), others.received()
        await scene.store.put(LINKS + "n1", elsewhere("n1", epoch=held.epoch + 1))
        await eventually_async(lambda: "n1" not in scene.hub.held)
        await eventually_async(lambda: ours.ended)
        assert ours.received() == ["leave", "end"]
        await asyncio.sleep(0.2)
        assert others.received() == []
        route = await scene.route("n1")
        assert route is not None
        assert route.replica == "b", "the other's route is not ours to withdraw"


async def test_every_agent_learns_of_a_change_of_the_replicas_once() -> None:
    scene = Scene()
    addresses = ["a:1"]
    async with scene.running(), scene.link("n1") as held:
        await eventually_async(lambda: held.published)
        line = Line(held)
        announcing = asyncio.ensure_future(
            scene.hub.announce_replicas(scene.replicas, lambda: addresses)
        )
        try:
            await eventually_async(lambda: "welcome" in line.received())
            await scene.store.put(REPLICAS + "x", b"unreadable")
            await asyncio.sleep(0.1)
            assert line.received() == []
            addresses = ["a:1", "b:1"]
            await scene.store.put(REPLICAS + "b", b"{}")
            await eventually_async(lambda: line.messages)
            (message,) = line.messages
            assert list(message.welcome.replicas) == ["a:1", "b:1"]
            assert message.welcome.replica == "a"
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)


async def test_every_agent_learns_when_links_can_be_published_no_longer_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lattice.features.link.service.hub._TEND_EVERY_S", 0.05)
    possible = True
    monkeypatch.setattr(Routes, "can_be_written", property(lambda _: possible))
    scene = Scene()
    async with scene.running(), scene.link("n1") as held:
        await eventually_async(lambda: held.published)
        line = Line(held)
        await eventually_async(lambda: line.messages)
        line.received()
        announcing = asyncio.ensure_future(scene.hub.announce_published())
        try:
            possible = False
            await eventually_async(lambda: line.messages)
            assert line.messages == [LinkDown(pong=Pong(published=False))]
            possible = True
            await eventually_async(lambda: len(line.messages) > 1)
            assert line.messages[1:] == [LinkDown(pong=Pong(published=True))]
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)


async def test_an_agent_that_reads_nothing_is_given_up_after_64_messages() -> None:
    scene = Scene()
    async with scene.link("n1") as held:
        for number in range(64):
            held.send(LinkDown(pong=Pong(number=number)))
        with pytest.raises(Unavailable):
            held.send(LinkDown(pong=Pong()))
        held.end("it is silent")
        line = Line(held)
        await eventually_async(lambda: line.ended)
        assert line.received()[-2:] == ["leave", "end"]


async def test_a_line_that_breaks_ends_its_link() -> None:
    class Broken(Line):
        async def write(self, _message: LinkDown, /) -> None:
            raise OSError("broken")

    scene = Scene()
    async with scene.link("n1") as held:
        line = Broken(held)
        held.send(LinkDown(pong=Pong()))
        await eventually_async(lambda: line.ended)
        with pytest.raises(OSError, match="broken"):
            await held.close()


@pytest.mark.parametrize(("probes", "lost_s"), [(False, 16.0), (True, 66.0)])
async def test_a_link_that_is_probed_may_be_silent_for_longer(
    *, probes: bool, lost_s: float
) -> None:
    scene = Scene()
    async with scene.link("n1", probes=probes) as held:
        scene.clock.advance(lost_s - 2)
        scene.hub._end_silent()
        assert scene.hub.held == {"n1": held}
        scene.clock.advance(2)
        scene.hub._end_silent()
        assert scene.hub.held == {}
