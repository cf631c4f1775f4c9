"""The links that this replica holds, published as routes so that others find its nodes.

One commit puts a route under the replica's lease together with the node's record, and expects both
as they were read. So two replicas never both hold the newer link. A commit has many routes, because
thousands of agents link within seconds after another replica's death.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.node import NOT_LOOKED, NodeHealth
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
    written,
)
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
from lattice.features.link.model import PINGED, PingTimes
from lattice.features.link.service.membership import Membership
from lattice.wire.v1.link_pb2 import Leave, LinkDown, Pong

_log = logging.getLogger(__name__)

_TRIES = 5
_AT_ONCE = 32
_BATCH = MOST_CHANGES // 2
_MOST_WAITING = 64


class AgentLine(Protocol):
    """The connection of a link."""

    def write(self, message: LinkDown, /) -> Awaitable[None]: ...
    def end(self) -> None: ...


@dataclass(eq=False, slots=True)
class HeldLink:
    """One agent's link, as its replica has it."""

    node: str
    boot_id: str
    instance: str
    agent_version: str
    since: float
    last_seen: float
    """Monotonic."""
    epoch: int = 0
    proven: bool = True
    """False until a ping shows that the agent hears this replica. The link is not published."""
    published: bool = False
    ahead_us: int | None = None
    round_trip_us: int | None = None
    health: NodeHealth = NOT_LOOKED
    health_at: float | None = None
    """The last change of the health; monotonic."""
    health_written: NodeHealth = NOT_LOOKED
    times: PingTimes = PINGED
    _waiting: list[LinkDown] = field(default_factory=list)
    _line: AgentLine | None = None
    _writing: asyncio.Task[None] | None = None
    """Only while messages wait: thousands of links are idle."""
    _ends: bool = False

    @property
    def waits(self) -> bool:
        """True if the route or the health is not written to the store yet."""
        return self.proven and (not self.published or self.health != self.health_written)

    def send(self, message: LinkDown) -> None:
        """Queue a message. Raises `Unavailable` if the agent does not read its messages."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Unavailable(
                f"Node {self.node} takes no more messages.", hint="Try again in a minute."
            )
        self._waiting.append(message)
        self._write_soon()

    def end(self, reason: str) -> None:
        """Tell the agent to leave, and end the link after that."""
        del self._waiting[_MOST_WAITING - 1 :]
        self._waiting.append(LinkDown(leave=Leave(reason=reason)))
        self._ends = True
        self._write_soon()

    def open(self, line: AgentLine) -> None:
        """From now on messages are written to this line."""
        self._line = line
        self._write_soon()

    async def close(self) -> None:
        """Write no more. Raises what a write has raised."""
        self._line = None
        if self._writing is not None:
            self._writing.cancel()
            (defect,) = await asyncio.gather(self._writing, return_exceptions=True)
            if isinstance(defect, Exception):
                raise defect

    def _write_soon(self) -> None:
        is_writing = self._writing is not None and not self._writing.done()
        if self._line is not None and self._waiting and not is_writing:
            self._writing = asyncio.ensure_future(self._write(self._line))

    async def _write(self, line: AgentLine) -> None:
        try:
            while self._waiting:
                await line.write(self._waiting.pop(0))
        except BaseException:
            self._line = None
            line.end()
            raise
        if self._ends:
            line.end()
        self._writing = None


class Superseded(Exception):
    """The node has a newer link elsewhere."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to write to publish a link, and what the commit expects."""

    held: HeldLink
    epoch: int
    health: NodeHealth
    expect: tuple[Expect, Expect]
    changes: tuple[Change, ...]


class Routes:
    """Reads and writes routes. Every call raises `Unavailable` while the store is away."""

    def __init__(
        self,
        store: StateStore,
        links: StateView,
        nodes: StateView,
        membership: Membership,
        clock: Clock,
    ) -> None:
        self._store = store
        self._links = links
        self._nodes = nodes
        self._membership = membership
        self._clock = clock
        self._busy = asyncio.Semaphore(_AT_ONCE)
        self._changes = links.reader()
        self._by_node: dict[str, Link] = {}

    @property
    def can_be_written(self) -> bool:
        """False while this replica has no lease, or its snapshot of the routes is old."""
        return bool(self._membership.lease) and self._links.source.ok

    def update(self) -> list[str]:
        """Read the routes that changed since the last call; returns their nodes."""
        nodes = []
        for change in self._changes.take():
            node = change.key.removeprefix(LINKS)
            route = _route(node, change.entry) if change.entry else None
            if route is None:
                self._by_node.pop(node, None)
            else:
                self._by_node[node] = route
            nodes.append(node)
        return nodes

    def of(self, node: str) -> Link | None:
        """The node's route as of the last update."""
        return self._by_node.get(node)

    async def publish(self, waiting: Sequence[HeldLink]) -> list[HeldLink]:
        """Publish these links; returns those with a newer link elsewhere."""
        late = []
        for begin in range(0, len(waiting), _BATCH):
            plans = []
            for held in waiting[begin : begin + _BATCH]:
                record = self._nodes.get(NODES + held.node)
                route = self._links.get(LINKS + held.node)
                try:
                    plans.append(self._plan(held, record, route))
                except Superseded:
                    late.append(held)
            if plans and not await self._commit(plans):
                # The snapshot was old for one of them, so each is published alone, from a new read.
                alone = await asyncio.gather(*(self._publish_one(plan.held) for plan in plans))
                late += [held for held in alone if held]
        return late

    async def _publish_one(self, held: HeldLink) -> HeldLink | None:
        async with self._busy:
            for _ in range(_TRIES):
                record = await self._store.get(NODES + held.node)
                route = await self._store.get(LINKS + held.node)
                try:
                    if await self._commit([self._plan(held, record, route)]):
                        break
                except Superseded:
                    return held
        return None

    def _plan(self, held: HeldLink, record: Entry | None, route: Entry | None) -> _Plan:
        before = _presence(held.node, record)
        epoch = held.epoch or next_epoch(before)
        if before is not None and before.epoch > epoch:
            raise Superseded
        link = Link(
            node=held.node,
            replica=self._membership.me.id,
            epoch=epoch,
            since=held.since,
            boot_id=held.boot_id,
            agent_version=held.agent_version,
            instance=held.instance,
            health=held.health,
        )
        lease = self._membership.require_lease()
        changes: list[Change] = [Put(LINKS + held.node, written(link), lease)]
        presence = linked(before, link, self._clock.now().timestamp())
        if presence is not None:
            changes.append(Put(NODES + held.node, written(presence)))
        expect = (_expect(NODES + held.node, record), _expect(LINKS + held.node, route))
        return _Plan(held, epoch, link.health, expect, tuple(changes))

    async def _commit(self, plans: Sequence[_Plan]) -> bool:
        expect = [each for plan in plans for each in plan.expect]
        changes = [each for plan in plans for each in plan.changes]
        if await self._store.commit(expect, changes) is None:
            return False
        for plan in plans:
            plan.held.epoch, plan.held.published = plan.epoch, True
            plan.held.health_written = plan.health
            with suppress(Unavailable):
                plan.held.send(LinkDown(pong=Pong(published=True)))
        return True

    async def withdraw(self, route: Link, lost_at: float) -> None:
        """Delete the route of a link that is no longer held here, unless it changed."""
        async with self._busy:
            entry = await self._store.get(LINKS + route.node)
            record = await self._store.get(NODES + route.node)
            if entry is None or _route(route.node, entry) != route:
                return
            changes: list[Change] = [Delete(entry.key)]
            presence = unlinked(_presence(route.node, record), route.epoch, lost_at)
            if presence is not None:
                changes.append(Put(NODES + route.node, written(presence)))
            expect = [_expect(entry.key, entry), _expect(NODES + route.node, record)]
            await self._store.commit(expect, changes)


def _expect(key: str, entry: Entry | None) -> Expect:
    return Expect(key, entry.revision if entry else 0)


def _presence(node: str, entry: Entry | None) -> Presence | None:
    try:
        return None if entry is None else read_presence(node, entry.value)
    except BadRecord as error:
        _log.warning("record of a node: %s", error)
        return None


def _route(node: str, entry: Entry) -> Link | None:
    try:
        return read_link(node, entry.value)
    except BadRecord as error:
        _log.warning("route to a node: %s", error)
        return None
