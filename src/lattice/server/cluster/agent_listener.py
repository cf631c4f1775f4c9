"""The listener for agents and replicas, and the links and streams behind it.

Links and streams exist before the listener opens, so that features can use them in their wiring.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog
from grpc import aio

from lattice.base.errors import ConfigurationError, LatticeError
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.features.link.rpc import LinkRpc, PeerRpc
from lattice.features.link.service.broker import NodeStreamBroker
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.routes import Routes
from lattice.features.locks.service import LockBook
from lattice.foundation.foundation import LoggedJournal
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.wiring import Wiring
from lattice.server.cluster.agents import AgentParts
from lattice.server.cluster.cluster_view import ClusterView
from lattice.server.cluster.limits import Rates
from lattice.server.listeners.grpc_bounds import AGENT_OPTIONS
from lattice.wire.carriers import STREAM_OPTIONS
from lattice.wire.guard import declared_permissions
from lattice.wire.peerguard import PeerGuard
from lattice.wire.v1.agents_pb2_grpc import add_AgentIdentityServiceServicer_to_server
from lattice.wire.v1.link_pb2_grpc import add_PeerServiceServicer_to_server

_LEAVE_S = 1.0
"""For agents to receive the request to leave; a dead one would not react in a minute."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links that agents hold, and the streams to nodes."""

    hub: LinkHub
    desk: NodeStreamBroker

    def leave(self) -> None:
        """Send agents and open streams to other replicas, before anything is closed."""
        self.hub.dismiss()
        self.desk.dismiss()

    def expel(self, node: str) -> None:
        """End the link and the streams of a node."""
        self.hub.expel(node)
        self.desk.expel(node)


@asynccontextmanager
async def open_links(
    view: ClusterView,
    agents: AgentParts,
    locks: LockBook,
    own_metrics: OwnMetrics,
    supervisor: Supervisor,
) -> AsyncIterator[Links]:
    """Links and streams until the context ends."""
    clock, peers = view.clock, agents.peers
    routes = Routes(view.store, view.links, view.nodes, view.membership, clock)
    hub = LinkHub(routes, view.membership, clock, agents.trust.quarantine)
    me = view.membership.me.address
    desk = NodeStreamBroker(hub, view.links, view.nodes, view.replicas, peers, me, clock, locks)
    links = Links(hub, desk)
    own_metrics.show(
        lambda: {
            "links_held": float(len(hub.held)),
            "links_standby": float(hub.standby.open),
            "links_clock_off": float(hub.clocks_off),
        }
    )
    announce = partial(hub.announce_replicas, view.replicas, view.addresses)
    async with supervisor.running(
        Loop("links", hub.tend, OnFailure.RESTART),
        Loop("replicas announced", announce, OnFailure.RESTART),
        Loop("links announced", hub.announce_published, OnFailure.RESTART),
        Loop("trust lost", partial(agents.trust.watch, links.expel), OnFailure.RESTART),
        Loop("locked nodes", partial(desk.expel_locked, locks.next_change), OnFailure.RESTART),
    ):
        yield links


@asynccontextmanager
async def agent_listener(
    address: str,
    view: ClusterView,
    agents: AgentParts,
    links: Links,
    rates: Rates,
    journal: LoggedJournal,
    log: structlog.stdlib.BoundLogger,
    wirings: Iterable[Wiring],
) -> AsyncIterator[PeerGuard]:
    """Serve agents and replicas until the context ends. Raises `ConfigurationError`.

    Yields the guard that admits them.
    """

    def refused(rpc: str, who: str, error: LatticeError) -> None:
        journal.refused(rpc, who, error.message)

    trust = agents.trust
    guard = PeerGuard(
        declared_permissions(),
        trust.admit,
        refused,
        journal.defect,
        note_use=trust.note_use,
        read=agents.read_peer,
        finished=journal.finished,
    )
    listener = aio.server(interceptors=[guard], options=(*AGENT_OPTIONS, *STREAM_OPTIONS))
    link_rpc = LinkRpc(links.hub, links.desk, view.addresses)
    listener.add_generic_rpc_handlers((link_rpc.handlers(),))
    add_PeerServiceServicer_to_server(PeerRpc(links.hub, rates.answer), listener)
    add_AgentIdentityServiceServicer_to_server(agents.renewal, listener)
    for each in wirings:
        each.offer_agents(listener)
    try:
        listener.add_secure_port(address, agents.replica.grpc_server_credentials())
    except RuntimeError:
        raise ConfigurationError(
            f"{address} can't be listened on: the address is in use or not this machine's.",
            hint="Change api.agent_listen, or stop what listens there.",
        ) from None
    await listener.start()
    log.info("agents are served", at=address, reached_at=view.membership.me.address)
    try:
        yield guard
    finally:
        await listener.stop(_LEAVE_S)
