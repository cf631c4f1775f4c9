"""A server's reach: its place among the replicas, the agents it holds, the streams it opens.

Two parts, because what people may do with agents stands between them: `Reach` only knows the
agreed state; `open_links` opens the agents' listener on top of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog
from grpc import aio

from lattice.access.limits import Questions, Verdict
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, LatticeError, Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.lock import Locks
from lattice.domain.presence import LINKS, NODES
from lattice.domain.state import StateStore, StateView
from lattice.features.link.model import REPLICAS, BadReplica, Replica, read_replica
from lattice.features.link.rpc import LinkRpc, PeerRpc
from lattice.features.link.service.desk import StreamDesk
from lattice.features.link.service.hub import LinkHub
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.peers import Peers
from lattice.features.link.service.probe import ProbeService
from lattice.features.link.service.routes import Routes
from lattice.features.logs.rpc import LogIntakeRpc
from lattice.features.telemetry.rpc import MetricIntakeRpc
from lattice.server.agents import AgentParts
from lattice.server.figures import Figures
from lattice.server.grpcbounds import AGENT_OPTIONS
from lattice.server.journal import LoggedJournal
from lattice.server.limits import Rates
from lattice.server.presence import PresenceKeeper, times_of
from lattice.server.sections import ServerConfig
from lattice.wire.carriers import STREAM_OPTIONS
from lattice.wire.peerguard import PeerGuard
from lattice.wire.permissions import declared_permissions
from lattice.wire.v1.agents_pb2_grpc import add_AgentIdentityServiceServicer_to_server
from lattice.wire.v1.link_pb2_grpc import add_PeerServiceServicer_to_server
from lattice.wire.v1.logs_pb2_grpc import add_LogIntakeServicer_to_server
from lattice.wire.v1.telemetry_pb2_grpc import add_MetricIntakeServicer_to_server

_LEAVE_S = 1.0
"""For agents to hear that they should go; one that is dead would not hear it in a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """This replica in the agreed state, and what it sees there of nodes and other replicas."""

    store: StateStore
    clock: Clock
    membership: Membership
    links: StateView
    nodes: StateView
    replicas: StateView
    presences: PresenceKeeper

    def others(self) -> tuple[Replica, ...]:
        """Every replica that is up, this one too, as last seen."""
        found = []
        try:
            entries = self.replicas.entries
        except Unavailable:
            return (self.membership.me,)
        for entry in entries.values():
            try:
                found.append(read_replica(entry.value))
            except BadReplica:
                continue
        return tuple(found)

    def addresses(self) -> tuple[str, ...]:
        """Where agents can dial."""
        return tuple(
            sorted({each.address for each in self.others()} | {self.membership.me.address})
        )


@asynccontextmanager
async def open_reach(
    config: ServerConfig,
    store: StateStore,
    clock: Clock,
    replica_id: str,
    supervisor: Supervisor,
) -> AsyncIterator[Reach]:
    """Joins the replicas, and leaves them at the end."""
    me = Replica(
        id=replica_id, address=str(config.api.agent_address), since=clock.now().timestamp()
    )
    links, nodes, replicas = (
        WatchedStateView(store, prefix, clock) for prefix in (LINKS, NODES, REPLICAS)
    )
    presences = PresenceKeeper(store, links, nodes, clock, times_of(config.node_agent))
    membership = Membership(store, me)
    async with supervisor.running(
        Loop("state links", links.run, OnFailure.RESTART),
        Loop("state nodes", nodes.run, OnFailure.RESTART),
        Loop("state replicas", replicas.run, OnFailure.RESTART),
        Loop("presences", presences.run, OnFailure.RESTART),
        Loop("membership", membership.run, OnFailure.RESTART),
    ):
        yield Reach(
            store=store,
            clock=clock,
            membership=membership,
            links=links,
            nodes=nodes,
            replicas=replicas,
            presences=presences,
        )


class PeerBuckets:
    """The port `BucketOwner`: other replicas, asked over the agents' listener."""

    def __init__(self, peers: Peers, reach: Reach) -> None:
        self._peers = peers
        self._reach = reach

    async def take(self, replica: str, sub: str, kind: Questions) -> Verdict:
        """One question, judged where its bucket is. Raises `Unavailable`."""
        found = next((each for each in self._reach.others() if each.id == replica), None)
        if found is None:
            raise Unavailable(f"The server {replica} is gone.", hint="Try again.")
        return await self._peers.take_token(found, sub, kind)


@dataclass(frozen=True, slots=True)
class Links:
    """What features need of agents."""

    hub: LinkHub
    desk: StreamDesk
    probe: ProbeService

    def leave(self) -> None:
        """Send agents and open streams elsewhere, before anything is closed."""
        self.hub.dismiss()
        self.desk.dismiss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intakes:
    """What agents bring, besides their links; None where there is nowhere to put it."""

    logs: LogIntakeRpc | None = None
    metrics: MetricIntakeRpc | None = None

    def add_to(self, listener: aio.Server) -> None:
        if self.logs is not None:
            add_LogIntakeServicer_to_server(self.logs, listener)
        if self.metrics is not None:
            add_MetricIntakeServicer_to_server(self.metrics, listener)


@asynccontextmanager
async def open_links(  # noqa: PLR0913, PLR0917 - what it stands on
    config: ServerConfig,
    reach: Reach,
    agents: AgentParts,
    peers: Peers,
    rates: Rates,
    figures: Figures,
    log: structlog.stdlib.BoundLogger,
    intakes: Intakes,
    supervisor: Supervisor,
    locks: Locks | None = None,
) -> AsyncIterator[Links]:
    """Serve agents and replicas until the context ends. Raises `ConfigurationError`."""
    clock = reach.clock
    async with AsyncExitStack() as stack:
        routes = Routes(reach.store, reach.links, reach.nodes, reach.membership, clock)
        hub = LinkHub(routes, reach.membership, clock, agents.trust.quarantine)
        desk = StreamDesk(
            hub,
            reach.links,
            reach.nodes,
            reach.replicas,
            peers,
            reach.membership.me.address,
            clock,
            locks,
        )
        figures.show(
            lambda: {
                "links_held": float(len(hub.held)),
                "links_clock_off": float(hub.clocks_off),
            }
        )
        listener = _listener(reach, agents, hub, desk, rates, LoggedJournal(log, figures))
        intakes.add_to(listener)
        address = str(config.api.agent_listen)
        try:
            listener.add_secure_port(address, agents.replica.grpc_server_credentials())
        except RuntimeError:
            raise ConfigurationError(
                f"{address} can't be listened on: the address is in use or not this machine's.",
                hint="Change api.agent_listen, or stop what listens there.",
            ) from None
        await listener.start()
        stack.push_async_callback(listener.stop, _LEAVE_S)

        def expel(node: str) -> None:
            hub.expel(node)
            desk.expel(node)

        await stack.enter_async_context(
            supervisor.running(
                Loop("links", hub.tend, OnFailure.RESTART),
                Loop("trust lost", lambda: agents.trust.watch(expel), OnFailure.RESTART),
            )
        )
        log.info("agents are served", at=address, reached_at=reach.membership.me.address)
        yield Links(hub, desk, ProbeService(desk, agents.signer, clock, hub.replica))


def _listener(
    reach: Reach,
    agents: AgentParts,
    hub: LinkHub,
    desk: StreamDesk,
    rates: Rates,
    journal: LoggedJournal,
) -> aio.Server:
    def refused(rpc: str, who: str, error: LatticeError) -> None:
        journal.refused(rpc, who, error.message)

    trust = agents.trust
    guard = PeerGuard(
        declared_permissions(), trust.admit, refused, journal.defect, note_use=trust.note_use
    )
    listener = aio.server(interceptors=[guard], options=(*AGENT_OPTIONS, *STREAM_OPTIONS))
    links = LinkRpc(hub, desk, reach.addresses)
    listener.add_generic_rpc_handlers((links.handlers(),))
    add_PeerServiceServicer_to_server(PeerRpc(hub, rates.answer), listener)
    add_AgentIdentityServiceServicer_to_server(agents.renewal, listener)
    return listener
