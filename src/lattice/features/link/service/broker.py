"""Streams to nodes: a ticket goes out over the link, and the agent dials back with it.

A ticket is random, works once, for one node, and for a few seconds. The agent dials this replica
directly, even if another replica holds its link.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from lattice.access.locks import locked_text
from lattice.base.clock import Clock
from lattice.base.errors import BY_CODE, LatticeError, NotFound, PermissionRefused, Unavailable
from lattice.base.moment import age
from lattice.base.text import inert
from lattice.domain.lock import Locks, NoLocks
from lattice.domain.peer import PeerIdentity
from lattice.domain.presence import LINKS, NODES, BadRecord, Link, read_link, read_presence
from lattice.domain.state import StateView
from lattice.domain.stream import Lane, StreamKind, StreamQuestion
from lattice.features.link.model import REPLICAS, BadReplica, read_replica
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.peers import Peers
from lattice.wire.carriers import GrpcCarrier
from lattice.wire.interceptor import NextChange
from lattice.wire.lane import TlsLane
from lattice.wire.v1 import link_pb2 as pb

_TRIES = 3
_PAUSE_S = 0.5
_MOST_OPEN = 10_000
_R = TypeVar("_R")

_LANES = {Lane.INTERACTIVE: pb.INTERACTIVE, Lane.BULK: pb.BULK}


@dataclass(eq=False, slots=True)
class _Awaited:
    """A ticket that no agent has used yet, or the stream of one."""

    node: str
    carrier: asyncio.Future[GrpcCarrier | TlsLane]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class NodeStreamBroker:
    """The port `NodeStreams`, over links."""

    def __init__(
        self,
        hub: LinkHub,
        links: StateView,
        nodes: StateView,
        replicas: StateView,
        peers: Peers,
        address: str,
        clock: Clock,
        locks: Locks | None = None,
    ) -> None:
        """`address` is where agents dial this replica."""
        self._hub = hub
        self._links = links
        self._nodes = nodes
        self._replicas = replicas
        self._peers = peers
        self._address = address
        self._clock = clock
        self._locks = locks or NoLocks()
        self._awaited: dict[str, _Awaited] = {}
        self.lane_address = ""
        """Where agents dial lanes of this replica; empty: it takes none."""

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[GrpcCarrier | TlsLane]:
        """A carrier to the node, for as long as the context lasts."""
        if len(self._awaited) >= _MOST_OPEN:
            raise Unavailable("This server has too many streams open.", hint="Try again.")
        self._refuse_locked(question)
        ticket = secrets.token_hex(16)
        awaited = _Awaited(question.node, asyncio.get_running_loop().create_future())
        self._awaited[ticket] = awaited
        try:
            await self._hand_over(question, ticket)
            try:
                async with asyncio.timeout(question.patience_s):
                    carrier = await awaited.carrier
            except TimeoutError:
                raise Unavailable(
                    f"The agent of node {question.node} did not answer within "
                    f"{question.patience_s:.0f} s.",
                    hint="Try again; `lattice nodes` shows how it is.",
                ) from None
            yield carrier
        finally:
            self._awaited.pop(ticket, None)
            awaited.carrier.cancel()
            awaited.done.set()

    async def arrived(
        self, peer: PeerIdentity, opening: pb.StreamOpening, carrier: GrpcCarrier | TlsLane
    ) -> None:
        """Accept an agent with a ticket; return when the stream is no longer needed."""
        awaited = self._awaited.get(opening.ticket)
        if awaited is None or awaited.node != peer.name or awaited.carrier.done():
            raise NotFound("No such ticket.", hint="Nobody waits for this stream any more.")
        if opening.refused_code:
            awaited.carrier.set_exception(_refusal(peer.name, opening))
            return
        awaited.carrier.set_result(carrier)
        await awaited.done.wait()

    def expel(self, node: str) -> None:
        """End every stream to a node that is no longer trusted."""
        for awaited in list(self._awaited.values()):
            if awaited.node == node:
                awaited.done.set()

    async def expel_locked(self, next_change: NextChange) -> None:
        """End the streams to a node as soon as it is locked, until cancelled."""
        change = next_change()
        while True:
            await change
            change = next_change()
            for node in {each.node for each in self._awaited.values()}:
                if self._locks.of_node(node) is not None:
                    self.expel(node)

    def dismiss(self) -> None:
        """End every stream before this replica stops; callers reconnect elsewhere."""
        for awaited in list(self._awaited.values()):
            awaited.done.set()

    def _refuse_locked(self, question: StreamQuestion) -> None:
        # A ping shows nothing of a job, and operators need it then.
        lock = None if question.kind is StreamKind.ECHO else self._locks.of_node(question.node)
        if lock is not None:
            raise Unavailable(
                locked_text(lock), hint="Its jobs run on, and their output is stored meanwhile."
            )

    def linked_to(self, node: str) -> str:
        """The id of the replica that holds the node's link; empty if unknown."""
        if node in self._hub.held:
            return self._hub.replica
        route = self._route(node)
        return route.replica if route else ""

    async def _hand_over(self, question: StreamQuestion, ticket_id: str) -> None:
        ticket = pb.Ticket(
            id=ticket_id,
            dial=self._address,
            kind=question.kind.value,
            session=question.session,
            resume=question.resume,
            grant=question.grant,
            opening=question.opening,
            lane=_LANES[question.lane],
            # A handshake for each of a thousand nodes would take seconds.
            lane_dial="" if question.shared else self.lane_address,
        )
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                await self._pass(question.node, ticket)
            except Unavailable:
                # The route may be from before the node linked elsewhere.
                if last:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _pass(self, node: str, ticket: pb.Ticket) -> None:
        if node in self._hub.held:
            self._hub.hand(node, 0, ticket)
            return
        route = self._route(node)
        replica = _record(self._replicas, REPLICAS + route.replica, read_replica) if route else None
        if route is None or replica is None or replica.id == self._hub.replica:
            raise self._unreachable(node)
        request = pb.PassTicketRequest(node=node, epoch=route.epoch, ticket=ticket)
        await self._peers.pass_ticket(replica, request)

    def _route(self, node: str) -> Link | None:
        return _record(self._links, LINKS + node, lambda value: read_link(node, value))

    def _unreachable(self, node: str) -> LatticeError:
        record = _record(self._nodes, NODES + node, lambda value: read_presence(node, value))
        if record is None and self._nodes.source.ok:
            return NotFound(
                f"No agent of node {inert(node)} has ever linked to Lattice.",
                hint=f"An administrator enrols it: lattice admin enrol {inert(node)}",
            )
        if record is None:
            return Unavailable(
                f"Whether there is a way to node {inert(node)} can't be told now.",
                hint="The agreed state does not answer; try again in a minute.",
            )
        lost_s = max(0.0, self._clock.now().timestamp() - record.since)
        since = "" if record.linked else f" for {age(lost_s)}"
        return Unavailable(
            f"There is no way to node {node} now: its agent has not been linked{since}.",
            hint="It links again by itself when node and network are well; `lattice nodes` shows.",
        )


def _record(view: StateView, key: str, read: Callable[[bytes], _R]) -> _R | None:
    """The record of a key; None if it isn't there, or can't be read now."""
    try:
        entry = view.get(key)
        return read(entry.value) if entry else None
    except (Unavailable, BadRecord, BadReplica):
        return None


def _refusal(node: str, opening: pb.StreamOpening) -> LatticeError:
    # The message names the node, so that it can't pass for an error of another part.
    kind = BY_CODE.get(opening.refused_code, PermissionRefused)
    return kind(f"Node {node} refused: {inert(opening.refused_message)[:300]}")
