"""The links that a replica holds.

A link is accepted if its certificate names the node in its hello, and then published. While the
store is away the link stays open and is published later. `tend` compares each link that changed
with its published route, and corrects the difference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.domain.node import NodeHealth
from lattice.domain.peer import PeerIdentity
from lattice.domain.state import StateView
from lattice.features.link.convert import health_of
from lattice.features.link.model import PINGED, PROBED, REPLACED
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.routes import HeldLink, Routes
from lattice.features.link.service.standby import StandbyRegistry
from lattice.wire.v1.link_pb2 import Hello, LinkDown, Ping, Pong, Ticket, Welcome

_log = logging.getLogger(__name__)

_GATHER_S = 0.05
_TEND_EVERY_S = 1.0
_CLOCK_OFF_US = 2_000_000
_HEALTH_EVERY_S = 10.0
_ANNOUNCE_AT_ONCE = 100
_ANNOUNCE_PAUSE_S = 0.05
"""Thousands of messages at once would hold up everything else."""


class LinkHub:
    """`held` has every link of this replica by node."""

    def __init__(
        self,
        routes: Routes,
        membership: Membership,
        clock: Clock,
        quarantine: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.held: dict[str, HeldLink] = {}
        self.standby = StandbyRegistry(clock)
        self.replica = membership.me.id
        self._routes = routes
        self._clock = clock
        self._quarantine = quarantine
        self._lost_at: dict[str, float] = {}
        self._changed: set[str] = set()
        """Nodes to compare: their link or their route changed."""
        self._due = asyncio.Event()
        membership.on_new_lease(self._publish_again)

    @asynccontextmanager
    async def holding(
        self, peer: PeerIdentity, hello: Hello, connection: str = ""
    ) -> AsyncIterator[HeldLink]:
        """Hold a link while the context lasts. Raises `PermissionRefused` for a wrong name."""
        if hello.node != peer.name:
            await self._quarantine(peer.name, f"it spoke as {hello.node[:63]!r}")
            raise PermissionRefused(
                f"The certificate is for {peer.name}, not for the node that was named.",
                hint=f"An administrator looks into it: lattice admin agents; then lattice admin "
                f"restore {peer.name}.",
            )
        held = HeldLink(
            node=peer.name,
            boot_id=hello.boot_id[:64],
            instance=hello.instance[:64],
            agent_version=hello.agent_version[:64],
            since=self._clock.now().timestamp(),
            last_seen=self._clock.monotonic(),
            health=health_of(hello.health),
            # A connection that stood idle may by now carry only what the agent sends.
            proven=not self.standby.has(peer.name, connection),
            times=PROBED if hello.probes else PINGED,
        )
        before = self.held.get(held.node)
        if before is not None:
            before.end(REPLACED)
        self.held[held.node] = held
        self.standby.forget(held.node)
        if held.proven:
            self._found(held)
        try:
            yield held
        finally:
            self._drop(held)

    def welcome(self, held: HeldLink, replicas: Iterable[str]) -> Welcome:
        """The first message to an agent. It is sent again when the replicas change."""
        return Welcome(
            replica=self.replica,
            published=held.published,
            ping_every_ms=int(held.times.every_s * 1000),
            silence_ms=int(held.times.silence_s * 1000),
            replicas=replicas,
        )

    async def announce_replicas(
        self, view: StateView, replicas: Callable[[], Iterable[str]]
    ) -> None:
        """Send the addresses of the replicas to every agent when they change, until cancelled."""
        announced: list[str] | None = None
        async with view.changes() as batches:
            async for _ in batches:
                addresses = list(replicas())
                if addresses == announced:
                    continue
                announced = addresses
                await self._send_all(partial(self._announcement, addresses))

    def _announcement(self, replicas: Iterable[str], held: HeldLink) -> LinkDown:
        return LinkDown(welcome=self.welcome(held, replicas))

    async def announce_published(self) -> None:
        """Tell all agents when links can be published no longer, or again, until cancelled.

        Without it they would know by the next pong, which may be half a minute away.
        """
        was_possible = True
        while True:
            await asyncio.sleep(_TEND_EVERY_S)
            if was_possible is not self._routes.can_be_written:
                was_possible = not was_possible
                await self._send_all(
                    lambda held: LinkDown(pong=Pong(published=self._is_published(held)))
                )

    async def _send_all(self, message: Callable[[HeldLink], LinkDown]) -> None:
        links = list(self.held.values())
        for begin in range(0, len(links), _ANNOUNCE_AT_ONCE):
            for held in links[begin : begin + _ANNOUNCE_AT_ONCE]:
                with suppress(Unavailable):
                    held.send(message(held))
            await asyncio.sleep(_ANNOUNCE_PAUSE_S)

    def answer_ping(self, held: HeldLink, ping: Ping) -> None:
        """Note a ping and answer it."""
        held.last_seen = self._clock.monotonic()
        if not held.proven:
            held.proven = True
            self._found(held)
        held.ahead_us = ping.ahead_us if ping.HasField("ahead_us") else None
        held.round_trip_us = ping.round_trip_us if ping.HasField("round_trip_us") else None
        if ping.HasField("health"):
            self._learn_health(held, health_of(ping.health))
        now_us = int(self._clock.now().timestamp() * 1e6)
        pong = Pong(
            number=ping.number,
            sent_us=ping.sent_us,
            received_us=now_us,
            published=self._is_published(held),
        )
        held.send(LinkDown(pong=pong))

    def _is_published(self, held: HeldLink) -> bool:
        # Without a lease other replicas lose the route, and the agent must find another replica.
        return held.published and self._routes.can_be_written

    def _found(self, held: HeldLink) -> None:
        self._lost_at.pop(held.node, None)
        self._compare_soon(held.node)

    def _learn_health(self, held: HeldLink, health: NodeHealth) -> None:
        if health == held.health:
            return
        if held.health_at is not None and held.last_seen - held.health_at < _HEALTH_EVERY_S:
            return  # the next ping has it again; this limits how often an agent causes a write
        held.health, held.health_at = health, held.last_seen
        self._compare_soon(held.node)

    @property
    def clocks_off(self) -> int:
        """How many of the linked nodes have a clock that is more than 2 s wrong."""
        return sum(abs(held.ahead_us or 0) > _CLOCK_OFF_US for held in self.held.values())

    def hand(self, node: str, epoch: int, ticket: Ticket) -> None:
        """Send a ticket to a node that is linked here. Raises `Unavailable` if it isn't."""
        held = self.held.get(node)
        if held is None or (epoch and held.epoch and held.epoch != epoch):
            raise Unavailable(f"Node {node} is not linked to {self.replica}.", hint="Try again.")
        held.send(LinkDown(ticket=ticket))

    def expel(self, node: str) -> None:
        """End the link of a node that is no longer trusted."""
        self.standby.forget(node)
        held = self.held.get(node)
        if held is not None:
            self._end(held, "the node's certificate is no longer accepted")

    def dismiss(self) -> None:
        """Tell every agent to leave before this replica stops."""
        for held in self.held.values():
            held.end("the server is stopping")

    async def tend(self) -> None:
        """Until cancelled: end silent links, publish new ones, withdraw routes of lost ones."""
        listened_s = self._clock.monotonic()
        while True:
            try:
                async with asyncio.timeout(_TEND_EVERY_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            # Links that come at the same moment are written together.
            await asyncio.sleep(_GATHER_S)
            self._due.clear()
            now_s = self._clock.monotonic()
            if now_s - listened_s >= _TEND_EVERY_S:
                listened_s = now_s
                self._end_silent()
            try:
                await self._put_right()
            except LatticeError as error:
                _log.info("links: %s", error.message)

    def _compare_soon(self, *nodes: str) -> None:
        self._changed.update(nodes)
        self._due.set()

    def _publish_again(self) -> None:
        for held in self.held.values():
            held.published = False
        self._compare_soon(*self.held)

    def _end_silent(self) -> None:
        now = self._clock.monotonic()
        for held in list(self.held.values()):
            if now - held.last_seen > held.times.silence_s:
                _log.warning("link %s: silent for %.0f s", held.node, now - held.last_seen)
                self._end(held, "nothing was heard of the agent")

    async def _put_right(self) -> None:
        if not self._routes.can_be_written:
            return
        self._changed.update(self._routes.update())
        nodes, self._changed = self._changed, set()
        done = False
        try:
            await self._publish(nodes)
            await self._withdraw(nodes)
            done = True
        finally:
            if not done:
                self._changed |= nodes

    async def _publish(self, nodes: Iterable[str]) -> None:
        """Publish the links of these nodes, and end those that have a newer one elsewhere."""
        waiting = []
        for node in nodes:
            held, route = self.held.get(node), self._routes.of(node)
            if held is None:
                continue
            if held.published and route and route.epoch > held.epoch:
                self._end(held, "the node has a newer link")
            elif held.waits:
                waiting.append(held)
        for held in await self._routes.publish(waiting):
            self._end(held, "the node has a newer link")
        self._changed.update(held.node for held in waiting if held.waits)

    async def _withdraw(self, nodes: Iterable[str]) -> None:
        """Withdraw the routes of these nodes that lead here, if the link is lost."""
        now = self._clock.now().timestamp()
        lost = []
        for node in nodes:
            route = self._routes.of(node)
            if route is None or route.replica != self.replica:
                # A route that is not published here needs no time of loss.
                self._lost_at.pop(node, None)
            elif node not in self.held:
                lost.append(self._routes.withdraw(route, self._lost_at.get(node, now)))
                # Until the route is seen to be gone: another replica may change the record first.
                self._changed.add(node)
        await asyncio.gather(*lost)

    def _end(self, held: HeldLink, reason: str) -> None:
        held.end(reason)
        self._drop(held)

    def _drop(self, held: HeldLink) -> None:
        if self.held.get(held.node) is not held:
            return
        del self.held[held.node]
        # A silent link is lost since its next ping was due, not since its silence was noticed.
        late_s = max(0.0, self._clock.monotonic() - held.last_seen - held.times.every_s)
        self._lost_at[held.node] = self._clock.now().timestamp() - late_s
        self._compare_soon(held.node)
