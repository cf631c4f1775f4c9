"""Opens what the features of a server are wired on, each part on the ones before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from lattice.access.tokens import TokenVerifier
from lattice.adapters.own_tokens import OwnTokens
from lattice.adapters.signedstate import SignedStateStore
from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.operator import SlurmNodeOperator
from lattice.adapters.slurm.scheduler import SlurmScheduler
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.tenants import SlurmTenantAccounts
from lattice.adapters.slurm.token_judge import SlurmTokenJudge
from lattice.base.clock import Clock
from lattice.base.reload import Reloader
from lattice.base.supervisor import Supervisor
from lattice.domain.audit import NoTrail
from lattice.domain.claim import NoClaims
from lattice.domain.metricstore import MetricStore
from lattice.domain.objects import ObjectStore
from lattice.domain.scheduler import Scheduler
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.site_keys import SiteKeys
from lattice.domain.vcluster import Vclusters
from lattice.features.audit.service.log import AuditLog
from lattice.features.claims.service.ledger import ClaimBook
from lattice.features.locks.service import LockBook
from lattice.features.logs.service.lastoutput import NodeLastOutputs
from lattice.features.sharing.service.reads import WrittenReads
from lattice.features.sharing.service.sharing import SharedAllocations
from lattice.foundation.data_keys import DataKeys
from lattice.foundation.foundation import Foundation, LoggedJournal, NodeAccess
from lattice.foundation.own_metrics import OwnMetrics
from lattice.server.agreed_parts import (
    open_audit_log,
    open_claims,
    open_data_keys,
    open_locks,
    open_shares,
)
from lattice.server.cluster.agent_listener import Links, open_links
from lattice.server.cluster.agents import AgentParts, new_replica_id, open_agents
from lattice.server.cluster.cluster_view import ClusterView, PeerBuckets, open_cluster_view
from lattice.server.cluster.limits import Limits, NoOtherReplica, open_limits
from lattice.server.cluster.sensitive_nodes import SensitiveNodes
from lattice.server.cluster.state import AgreedState, open_state
from lattice.server.config.reload_table import RELOADED, problems_of
from lattice.server.config.sections import ServerConfig
from lattice.server.engines import (
    open_administration,
    open_metric_store,
    open_objects,
    open_own_tokens,
    open_reservations,
    open_run_store,
    open_scheduler,
    open_sensitive_objects,
    open_site_keys,
    open_token_judge,
    open_verifier,
    slurm_commands,
    submit_gate,
)
from lattice.server.measurement import Measurement, MeasurementNeeds, open_measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the process itself has."""

    config: ServerConfig
    clock: Clock
    log: structlog.stdlib.BoundLogger
    own_metrics: OwnMetrics
    supervisor: Supervisor
    journal: LoggedJournal
    replica: str
    """The id of this server among the replicas."""
    commands: SlurmCommands
    views: Vclusters
    reloader: Reloader[ServerConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The server among its replicas."""

    agreed: AgreedState
    view: ClusterView
    shares: SharedAllocations
    locks: LockBook
    limits: Limits
    sensitive_nodes: SensitiveNodes
    identity: AgentParts | None
    """None: no identity is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgents:
    """The agents of a server with an identity."""

    parts: AgentParts
    links: Links
    measurement: Measurement
    audit: AuditLog
    claims: ClaimBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The foundation, and those parts of it that single features or listeners need directly."""

    foundation: Foundation
    commands: SlurmCommands
    reloader: Reloader[ServerConfig]
    scheduler: SlurmScheduler
    verifier: TokenVerifier
    own_tokens: OwnTokens | None
    token_judge: SlurmTokenJudge | None
    cluster: Cluster
    agents: ServedAgents | None
    """None: no identity is configured."""

    @property
    def config(self) -> ServerConfig:
        """The configuration in force."""
        return self.reloader.current


@asynccontextmanager
async def open_ground(
    config: ServerConfig,
    clock: Clock,
    log: structlog.stdlib.BoundLogger,
    supervisor: Supervisor,
    read: Callable[[], ServerConfig] | None = None,
) -> AsyncIterator[Ground]:
    """All parts until the context ends. Raises `ConfigurationError`.

    `read` reads the configuration again; None: it never changes.
    """
    own_metrics = OwnMetrics()
    own_metrics.count_by("loop_failures_total", "loop", lambda: supervisor.failures)
    process = Process(
        config=config,
        clock=clock,
        log=log,
        own_metrics=own_metrics,
        supervisor=supervisor,
        journal=LoggedJournal(log, own_metrics),
        replica=new_replica_id(),
        commands=slurm_commands(config.slurm),
        views=config.views,
        reloader=Reloader(
            config,
            RELOADED,
            read or (lambda: config),
            lambda merged: problems_of(merged, config),
            clock,
        ),
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        scheduler = await enter(_open_scheduler(process))
        own_tokens = open_own_tokens(config, clock)
        verifier = await enter(open_verifier(config.api, clock, supervisor, own_tokens))
        token_judge = await enter(open_token_judge(config, clock))
        cluster = await enter(_open_cluster(process, scheduler))
        metrics = await enter(open_metric_store(config.telemetry, clock))
        run_store = await enter(open_run_store(config.runs, clock))
        agents = await enter(_open_agents(process, cluster, scheduler, metrics))
        site_keys = open_site_keys(config.sensitive)
        data_keys = await enter(_open_data_keys(process, cluster, scheduler, site_keys))
        foundation = _foundation(
            process,
            cluster,
            scheduler=scheduler,
            metrics=metrics,
            objects=open_objects(config.objects, config.single),
            site_keys=site_keys,
            data_keys=data_keys,
            agents=agents,
        )
        foundation = replace(foundation, run_store=run_store)
        yield Ground(
            foundation=foundation,
            commands=process.commands,
            reloader=process.reloader,
            scheduler=scheduler,
            verifier=verifier,
            own_tokens=own_tokens,
            token_judge=token_judge,
            cluster=cluster,
            agents=agents,
        )


def _open_scheduler(process: Process) -> AbstractAsyncContextManager[SlurmScheduler]:
    return open_scheduler(
        process.config,
        process.commands,
        process.views,
        process.clock,
        process.own_metrics,
        process.supervisor,
    )


@asynccontextmanager
async def _open_cluster(process: Process, scheduler: Scheduler) -> AsyncIterator[Cluster]:
    config, clock, supervisor = process.config, process.clock, process.supervisor
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        agreed = await enter(open_state(config, clock, process.log, supervisor))
        state = agreed.store
        shares = await enter(open_shares(state, clock, supervisor))
        sensitive = SensitiveNodes(scheduler, SensitiveWork(process.views))
        view = await enter(
            open_cluster_view(config, state, clock, process.replica, supervisor, sensitive.has)
        )
        view.presences.show(process.own_metrics)
        locks = await enter(open_locks(state, clock, supervisor))
        identity = await enter(
            open_agents(
                config,
                agreed,
                clock,
                supervisor,
                replica_id=process.replica,
                presences=view.presences,
                replicas=view.addresses,
            )
        )
        limits = await enter(
            open_limits(
                config.rate_limits,
                state,
                clock,
                process.own_metrics,
                supervisor,
                replica=process.replica,
                lease=view.membership.require_lease,
                replicas=view.ids,
                others=PeerBuckets(identity.peers, view) if identity else NoOtherReplica(),
            )
        )
        yield Cluster(
            agreed=agreed,
            view=view,
            shares=shares,
            locks=locks,
            limits=limits,
            sensitive_nodes=sensitive,
            identity=identity,
        )


@asynccontextmanager
async def _open_agents(
    process: Process, cluster: Cluster, scheduler: Scheduler, metrics: MetricStore | None
) -> AsyncIterator[ServedAgents | None]:
    parts = cluster.identity
    if parts is None:
        yield None
        return
    needs = MeasurementNeeds(
        scheduler=scheduler,
        state=cluster.agreed.store,
        store=metrics,
        clock=process.clock,
        own_metrics=process.own_metrics,
        journal=process.journal,
        supervisor=process.supervisor,
        is_sensitive=SensitiveWork(process.views).covers,
        believe=parts.trust.admit,
    )
    opening = open_links(
        cluster.view, parts, cluster.locks, process.own_metrics, process.supervisor
    )
    async with (
        opening as links,
        open_measurement(needs, process.config.telemetry, links.desk, parts.signer) as measurement,
        open_claims(
            cluster.agreed.store, parts.record_signer, process.clock, process.supervisor
        ) as claims,
    ):
        cluster.sensitive_nodes.count_claimed(claims)
        audit = open_audit_log(cluster.agreed.store, process.clock, parts.signer)
        process.journal.record_in(audit)
        yield ServedAgents(
            parts=parts, links=links, measurement=measurement, audit=audit, claims=claims
        )


def _foundation(
    process: Process,
    cluster: Cluster,
    *,
    scheduler: SlurmScheduler,
    metrics: MetricStore | None,
    objects: ObjectStore | None,
    site_keys: SiteKeys | None,
    data_keys: DataKeys | None,
    agents: ServedAgents | None,
) -> Foundation:
    config, clock, state = process.config, process.clock, cluster.agreed.store
    commands = process.commands
    signed, outputs = state, None
    if agents is not None:
        signed = SignedStateStore(state, agents.parts.record_signer)
        outputs = NodeLastOutputs(agents.links.desk, agents.parts.signer, clock)
    site = SlurmSite(commands, "")
    administration = open_administration(config, site, clock)
    return Foundation(
        clock=clock,
        log=process.log,
        own_metrics=process.own_metrics,
        supervisor=process.supervisor,
        journal=process.journal,
        replica=process.replica,
        replicas=cluster.view.ids,
        scheduler=scheduler,
        operator=SlurmNodeOperator(commands, administration),
        tenants=SlurmTenantAccounts(commands, site, administration),
        administration=administration,
        accounting=scheduler.accounting,
        job_files=scheduler.job_files,
        views=process.views,
        state=state,
        signed_state=signed,
        shares=cluster.shares,
        reads=WrittenReads(state, clock, process.journal),
        locks=cluster.locks,
        audit=agents.audit if agents else NoTrail(),
        claims=agents.claims if agents else NoClaims(),
        reservations=open_reservations(config, site, clock) if agents else None,
        limits=cluster.limits,
        presences=cluster.view.presences,
        gate=submit_gate(config, clock),
        objects=objects,
        sensitive_objects=open_sensitive_objects(config),
        site_keys=site_keys,
        data_keys=data_keys,
        metrics=metrics,
        nodes=_node_access(agents) if agents else None,
        last_outputs=outputs,
    )


def _open_data_keys(
    process: Process, cluster: Cluster, scheduler: Scheduler, site_keys: SiteKeys | None
) -> AbstractAsyncContextManager[DataKeys | None]:
    return open_data_keys(
        cluster.agreed.store,
        site_keys,
        scheduler,
        process.clock,
        process.own_metrics,
        process.supervisor,
    )


def _node_access(agents: ServedAgents) -> NodeAccess:
    measurement = agents.measurement
    return NodeAccess(
        streams=agents.links.desk,
        signer=agents.parts.signer,
        looks=measurement.snapshots,
        modes=measurement.modes.of,
        attempts=measurement.attempts,
    )
