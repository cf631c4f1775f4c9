"""What every feature of a server stands on: Slurm, agreed state, other replicas, limits, stores.

Opened in the order in which each rests on the one before it, and let go the other way round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from lattice.access.tokens import TokenVerifier
from lattice.adapters.slurm.mirror import SlurmScheduler
from lattice.base.clock import Clock
from lattice.base.supervisor import Supervisor
from lattice.domain.lock import Locks, NoLocks
from lattice.domain.metricstore import MetricStore
from lattice.domain.objects import ObjectStore
from lattice.domain.state import StateStore
from lattice.features.link.service.peers import Peers
from lattice.features.locks.service.book import LockBook
from lattice.server.agents import AgentParts, new_replica_id, open_agents
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.server.limits import Limits, open_limits
from lattice.server.links import PeerBuckets, Reach, open_reach
from lattice.server.locks import open_locks
from lattice.server.objects import open_objects
from lattice.server.presence import show_presence
from lattice.server.sections import ServerConfig
from lattice.server.sharing import SharingParts, open_sharing
from lattice.server.slurm import open_scheduler
from lattice.server.state import AgreedState, open_state
from lattice.server.telemetry import open_metric_store
from lattice.server.verifier import open_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Without agreed state there are no shares, no reach and no agents."""

    config: ServerConfig
    clock: Clock
    log: structlog.stdlib.BoundLogger
    figures: Figures
    supervisor: Supervisor
    journal: LoggedJournal
    replica: str
    """The id of this server among the replicas."""
    scheduler: SlurmScheduler
    verifier: TokenVerifier
    state: AgreedState | None
    sharing: SharingParts | None
    reach: Reach | None
    agents: AgentParts | None
    """None where no identity is configured."""
    peers: Peers | None
    """The other replicas, where agents are served."""
    limits: Limits
    lock_book: LockBook | None
    """None where there is no agreed state: nothing can be locked then."""
    objects: ObjectStore | None
    metrics: MetricStore | None

    @property
    def store(self) -> StateStore | None:
        """The agreed state itself."""
        return self.state.store if self.state else None

    @property
    def locks(self) -> Locks:
        """The locks in force."""
        return self.lock_book or NoLocks()

    def replicas(self) -> tuple[str, ...]:
        """The ids of the servers that are up; none where there is no agreed state."""
        return _ids(self.reach)


@asynccontextmanager
async def open_ground(
    config: ServerConfig,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
    supervisor: Supervisor,
    *,
    single: Path | None = None,
) -> AsyncIterator[Ground]:
    """Until the context ends. Raises `ConfigurationError`."""
    figures = Figures()
    figures.count_by("loop_failures_total", "loop", lambda: supervisor.failures)
    journal = LoggedJournal(log, figures)
    replica = new_replica_id()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        scheduler = await enter(open_scheduler(config, clock, figures, supervisor))
        verifier = await enter(open_verifier(config.api, clock, supervisor))
        state = await enter(open_state(config.quorum, single, clock, log, supervisor))
        store = state.store if state else None
        sharing = (
            await enter(open_sharing(store, config.sharing, clock, journal, supervisor))
            if store
            else None
        )
        reach = (
            await enter(open_reach(config, store, clock, replica, supervisor)) if store else None
        )
        lock_book = await enter(open_locks(store, clock, supervisor)) if store else None
        if reach:
            show_presence(figures, reach.presences)
        agents = await enter(
            open_agents(
                config,
                store,
                clock,
                supervisor,
                replica_id=replica,
                presences=reach.presences if reach else None,
                replicas=reach.addresses if reach else None,
            )
        )
        peers = await enter(_open_peers(agents)) if agents else None
        limits = await enter(
            open_limits(
                config.rate_limits,
                store,
                clock,
                figures,
                supervisor,
                replica=replica,
                lease=reach.membership.require_lease if reach else None,
                replicas=lambda: _ids(reach),
                others=PeerBuckets(peers, reach) if peers and reach else None,
            )
        )
        yield Ground(
            config=config,
            clock=clock,
            log=log,
            figures=figures,
            supervisor=supervisor,
            journal=journal,
            replica=replica,
            scheduler=scheduler,
            verifier=verifier,
            state=state,
            sharing=sharing,
            reach=reach,
            agents=agents,
            peers=peers,
            limits=limits,
            lock_book=lock_book,
            objects=open_objects(config.objects, single),
            metrics=await enter(open_metric_store(config.telemetry, clock)),
        )


@asynccontextmanager
async def _open_peers(agents: AgentParts) -> AsyncIterator[Peers]:
    peers = Peers(agents.replica.channel_credentials, agents.replica.channel_options)
    try:
        yield peers
    finally:
        await peers.aclose()


def _ids(reach: Reach | None) -> tuple[str, ...]:
    return tuple(each.id for each in reach.others()) if reach else ()
