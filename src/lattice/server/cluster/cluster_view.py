"""This replica among the others: its own record, and its view of nodes and replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lattice import __version__
from lattice.access.limits import LimitVerdict, Questions
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.presence import LINKS, NODES
from lattice.domain.state import StateStore, StateView
from lattice.features.link.model import REPLICAS, BadReplica, Replica, read_replica
from lattice.features.link.service.membership import Membership
from lattice.features.link.service.peers import Peers
from lattice.server.cluster.presence import PresenceKeeper
from lattice.server.config.sections import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """This replica in the agreed state, and its view of nodes and other replicas."""

    store: StateStore
    clock: Clock
    membership: Membership
    links: StateView
    nodes: StateView
    replicas: StateView
    presences: PresenceKeeper

    def others(self) -> tuple[Replica, ...]:
        """Every replica that is up, including this one, as last seen."""
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

    def ids(self) -> tuple[str, ...]:
        """The ids of the servers that are up."""
        return tuple(each.id for each in self.others())

    def addresses(self) -> tuple[str, ...]:
        """The addresses that agents can dial."""
        return tuple(
            sorted({each.address for each in self.others()} | {self.membership.me.address})
        )


@asynccontextmanager
async def open_cluster_view(
    config: ServerConfig,
    store: StateStore,
    clock: Clock,
    replica_id: str,
    supervisor: Supervisor,
    has_sensitive_work: Callable[[str], bool],
) -> AsyncIterator[ClusterView]:
    """Join the replicas, and leave them at the end."""
    me = Replica(
        id=replica_id,
        address=str(config.api.agent_address),
        since=clock.now().timestamp(),
        version=__version__,
    )
    links, nodes, replicas = (
        WatchedStateView(store, prefix, clock) for prefix in (LINKS, NODES, REPLICAS)
    )
    presences = PresenceKeeper(
        store, links, nodes, clock, config.node_agent.times, sensitive=has_sensitive_work
    )
    membership = Membership(store, me)
    async with supervisor.running(
        Loop("state links", links.run, OnFailure.RESTART),
        Loop("state nodes", nodes.run, OnFailure.RESTART),
        Loop("state replicas", replicas.run, OnFailure.RESTART),
        Loop("presences", presences.run, OnFailure.RESTART),
        Loop("membership", membership.run, OnFailure.RESTART),
    ):
        yield ClusterView(
            store=store,
            clock=clock,
            membership=membership,
            links=links,
            nodes=nodes,
            replicas=replicas,
            presences=presences,
        )


class PeerBuckets:
    """The port `BucketOwner`: calls other replicas over their agents' listener."""

    def __init__(self, peers: Peers, view: ClusterView) -> None:
        self._peers = peers
        self._view = view

    async def take(self, replica: str, sub: str, kind: Questions) -> LimitVerdict:
        """Take one question at the bucket's owner. Raises `Unavailable`."""
        found = next((each for each in self._view.others() if each.id == replica), None)
        if found is None:
            raise Unavailable(f"The server {replica} is gone.", hint="Try again.")
        return await self._peers.take_token(found, sub, kind)
