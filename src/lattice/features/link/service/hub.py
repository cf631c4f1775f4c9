"""The links a replica holds, and the routes it publishes for them.

A link is accepted when its certificate names the node it speaks for. Then it is published: the
route under this replica's lease and the node's record, in one commit that expects both as they
were read, so two replicas never both believe that they hold the newer link. What can't be
published now (the store is away) is held all the same and published later; `tend` compares what
is held with what is published every second and puts right whatever differs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.domain.peer import PeerIdentity
from lattice.domain.presence import (
    LINKS,
    NODES,
    BadRecord,
    Link,
    Presence,
    linked,
    next_epoch,
    read_link,
    read_presence,
    unlinked,
)
from lattice.domain.presence import written as written_record
from lattice.domain.state import (
    MOST_CHANGES,
    Change,
    Delete,
    Entry,
    Expect,
    Put,
    StateStore,
    StateView,
)
from lattice.features.link.model import PING_EVERY_S, SILENCE_S
from lattice.features.link.service.membership import Membership
from lattice.wire.v1.link_pb2 import Hello, Leave, LinkDown, Ping, Pong, Ticket

_log = logging.getLogger(__name__)

_TRIES = 5
_AT_ONCE = 32
_BATCH = MOST_CHANGES // 2
_GATHER_S = 0.05
_MOST_WAITING = 64
_TEND_EVERY_S = 1.0


@dataclass(eq=False, slots=True)
class HeldLink:
    """One agent on the line."""

    node: str
    boot_id: str
    instance: str
    agent_version: str
    since: float
    heard: float
    """Monotonic."""
    epoch: int = 0
    published: bool = False
    ahead_us: int | None = None
    round_trip_us: int | None = None
    outbox: asyncio.Queue[LinkDown | None] = field(
        default_factory=lambda: asyncio.Queue(_MOST_WAITING)
    )

    def send(self, message: LinkDown) -> None:
        """Queue it. Raises `Unavailable` where the agent does not take what is sent."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            raise Unavailable(
                f"Node {self.node} takes no more messages.", hint="Try again in a minute."
            ) from None

    def end(self, reason: str) -> None:
        """Tell the agent to leave, and end the line after that."""
        while self.outbox.full():
            self.outbox.get_nowait()
        self.outbox.put_nowait(LinkDown(leave=Leave(reason=reason)))
        if not self.outbox.full():
            self.outbox.put_nowait(None)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to write to publish a link, and what must still be so."""

    held: HeldLink
    epoch: int
    expect: tuple[Expect, Expect]
    changes: tuple[Change, ...]


class LinkHub:
    """`held` is every link of this replica by node."""

    def __init__(
        self,
        store: StateStore,
        links: StateView,
        nodes: StateView,
        membership: Membership,
        clock: Clock,
        quarantine: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self.held: dict[str, HeldLink] = {}
        self._lost_at: dict[str, float] = {}
        self._compared: Mapping[str, Entry] | None = None
        self._known: dict[str, tuple[int, Link | None]] = {}
        self._store = store
        self._links = links
        self._nodes = nodes
        self._membership = membership
        self._clock = clock
        self._quarantine = quarantine
        self._publishing = asyncio.Semaphore(_AT_ONCE)
        self._due = asyncio.Event()
        membership.on_new_lease(self._publish_again)

    @property
    def replica(self) -> str:
        return self._membership.me.id

    @asynccontextmanager
    async def holding(self, peer: PeerIdentity, hello: Hello) -> AsyncIterator[HeldLink]:
        """Hold a link while the context lasts. Raises `PermissionRefused` for another's name."""
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
            heard=self._clock.monotonic(),
        )
        before = self.held.get(held.node)
        if before is not None:
            before.end("the agent has dialled again")
        self.held[held.node] = held
        self._due.set()
        try:
            yield held
        finally:
            if self.held.get(held.node) is held:
                self._drop(held)
                self._due.set()

    def heard(self, held: HeldLink, ping: Ping) -> None:
        """A sign of life; it is answered."""
        held.heard = self._clock.monotonic()
        held.ahead_us = ping.ahead_us if ping.HasField("ahead_us") else None
        held.round_trip_us = ping.round_trip_us if ping.HasField("round_trip_us") else None
        now_us = int(self._clock.now().timestamp() * 1e6)
        pong = Pong(
            number=ping.number,
            sent_us=ping.sent_us,
            received_us=now_us,
            published=held.published,
        )
        held.send(LinkDown(pong=pong))

    def hand(self, node: str, epoch: int, ticket: Ticket) -> None:
        """Give a ticket to a node that is linked here. Raises `Unavailable` if it isn't."""
        held = self.held.get(node)
        if held is None or (epoch and held.epoch and held.epoch != epoch):
            raise Unavailable(f"Node {node} is not linked to {self.replica}.", hint="Try again.")
        held.send(LinkDown(ticket=ticket))

    def expel(self, node: str) -> None:
        """End the link of a node that is not believed any more."""
        held = self.held.get(node)
        if held is not None:
            held.end("the node's certificate is no longer accepted")
            self._drop(held)
            self._due.set()

    def dismiss(self) -> None:
        """Send every agent elsewhere: this replica is about to stop."""
        for held in self.held.values():
            held.end("the server is stopping")

    async def _publish(self, held: HeldLink) -> None:
        """Let all replicas know that the node is here, from what the store says now."""
        async with self._publishing:
            for _ in range(_TRIES):
                record = await self._store.get(NODES + held.node)
                route = await self._store.get(LINKS + held.node)
                plan = self._plan(held, record, route)
                if plan is None or await self._commit([plan]):
                    return

    async def _publish_many(self, waiting: Sequence[HeldLink]) -> None:
        """The same for many at once, from the copies; whoever they are wrong for goes alone."""
        nodes, links = self._nodes.entries, self._links.entries
        for begin in range(0, len(waiting), _BATCH):
            plans = [
                plan
                for held in waiting[begin : begin + _BATCH]
                if (
                    plan := self._plan(
                        held, nodes.get(NODES + held.node), links.get(LINKS + held.node)
                    )
                )
            ]
            if plans and not await self._commit(plans):
                await asyncio.gather(*(self._publish(plan.held) for plan in plans))

    def _plan(self, held: HeldLink, record: Entry | None, route: Entry | None) -> _Plan | None:
        """What to write for a link; None, and its end, where a newer one is known."""
        before = _presence(held.node, record)
        epoch = held.epoch or next_epoch(before)
        if before is not None and before.epoch > epoch:
            self._leave(held)
            return None
        link = Link(
            node=held.node,
            replica=self.replica,
            epoch=epoch,
            since=held.since,
            boot_id=held.boot_id,
            agent_version=held.agent_version,
            instance=held.instance,
        )
        lease = self._membership.require_lease()
        changes: list[Change] = [Put(LINKS + held.node, written_record(link), lease)]
        presence = linked(before, link, self._clock.now().timestamp())
        if presence is not None:
            changes.append(Put(NODES + held.node, written_record(presence)))
        expect = (_expect(NODES + held.node, record), _expect(LINKS + held.node, route))
        return _Plan(held, epoch, expect, tuple(changes))

    async def _commit(self, plans: Sequence[_Plan]) -> bool:
        expect = [each for plan in plans for each in plan.expect]
        changes = [each for plan in plans for each in plan.changes]
        if await self._store.commit(expect, changes) is None:
            return False
        for plan in plans:
            plan.held.epoch, plan.held.published = plan.epoch, True
            with suppress(Unavailable):
                plan.held.send(LinkDown(pong=Pong(published=True)))
        return True

    def _publish_again(self) -> None:
        for held in self.held.values():
            held.published = False
        self._due.set()

    async def tend(self) -> None:
        """Until cancelled: end silent links, publish the unpublished, withdraw what is gone."""
        while True:
            try:
                async with asyncio.timeout(_TEND_EVERY_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            # Those who come at the same moment are written down together.
            await asyncio.sleep(_GATHER_S)
            self._due.clear()
            self._end_silent()
            try:
                await self._put_right()
            except LatticeError as error:
                _log.info("links: %s", error.message)
            except Exception:  # noqa: BLE001 - one odd record must not end the care for all others
                _log.exception("links: not foreseen")

    def _end_silent(self) -> None:
        now = self._clock.monotonic()
        for held in list(self.held.values()):
            if now - held.heard > SILENCE_S:
                _log.warning("link %s: silent for %.0f s", held.node, now - held.heard)
                held.end("nothing was heard of the agent")
                self._drop(held)

    async def _put_right(self) -> None:
        if not self._membership.lease or not self._links.source.ok:
            return
        routes = self._links.entries
        waiting = [held for held in self.held.values() if not held.published]
        if routes is self._compared and not waiting and not self._lost_at:
            return
        read = self._read_routes(routes)
        for held in list(self.held.values()):
            route = read.get(held.node)
            if held.published and route and route.epoch > held.epoch:
                self._leave(held)
        await self._publish_many(waiting)
        gone = [
            route
            for node, route in read.items()
            if route.replica == self.replica and node not in self.held
        ]
        await asyncio.gather(*map(self._withdraw, gone))
        for node in self._lost_at.keys() - {route.node for route in gone}:
            # Nothing of it is published any more: there is nothing to date.
            if LINKS + node not in routes:
                del self._lost_at[node]
        self._compared = routes

    def _read_routes(self, routes: Mapping[str, Entry]) -> dict[str, Link]:
        """By node. Of thousands few have changed since the last look, and only these are read."""
        known, self._known = self._known, {}
        for key, entry in routes.items():
            before = known.get(key)
            if before is not None and before[0] == entry.revision:
                self._known[key] = before
            else:
                self._known[key] = (entry.revision, _route(key.removeprefix(LINKS), entry))
        return {route.node: route for _, route in self._known.values() if route}

    def _leave(self, held: HeldLink) -> None:
        held.end("the node has a newer link")
        if self.held.get(held.node) is held:
            self._drop(held)

    def _drop(self, held: HeldLink) -> None:
        del self.held[held.node]
        # One that fell silent is lost since its next sign of life was due, not since we noticed.
        late_s = max(0.0, self._clock.monotonic() - held.heard - PING_EVERY_S)
        self._lost_at[held.node] = self._clock.now().timestamp() - late_s

    async def _withdraw(self, route: Link) -> None:
        """Take back the route of a link that is no longer held here."""
        async with self._publishing:
            entry = await self._store.get(LINKS + route.node)
            record = await self._store.get(NODES + route.node)
            published = _route(route.node, entry)
            if published != route or entry is None or route.node in self.held:
                return
            changes: list[Change] = [Delete(entry.key)]
            before = _presence(route.node, record)
            since = self._lost_at.get(route.node, self._clock.now().timestamp())
            presence = unlinked(before, route.epoch, since)
            if presence is not None:
                changes.append(Put(NODES + route.node, written_record(presence)))
            expect = [_expect(entry.key, entry), _expect(NODES + route.node, record)]
            if await self._store.commit(expect, changes) is not None:
                self._lost_at.pop(route.node, None)


def _expect(key: str, entry: Entry | None) -> Expect:
    return Expect(key, entry.revision if entry else 0)


def _presence(node: str, entry: Entry | None) -> Presence | None:
    try:
        return None if entry is None else read_presence(node, entry.value)
    except BadRecord as error:
        _log.warning("record of a node: %s", error)
        return None


def _route(node: str, entry: Entry | None) -> Link | None:
    try:
        return None if entry is None else read_link(node, entry.value)
    except BadRecord as error:
        _log.warning("route to a node: %s", error)
        return None
