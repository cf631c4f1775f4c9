"""The composition root: every part of the server is made here, in the order it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog
from fastapi import FastAPI
from grpc import aio

from lattice import __version__
from lattice.access.actor import Actor, ClaimNames
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.tokens import TokenVerifier
from lattice.base.clock import Clock
from lattice.domain.lastoutput import LastOutputs
from lattice.domain.operation import NodeOperator
from lattice.domain.presence import Presences
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore, StateView
from lattice.domain.submission import SubmitGate
from lattice.domain.vcluster import Vclusters
from lattice.features.agents import http as agents_http
from lattice.features.agents.rpc import AgentRpc
from lattice.features.allocations import http as allocations_http
from lattice.features.allocations.rpc import AllocationRpc
from lattice.features.allocations.service import AllocationService
from lattice.features.compare.service.comparing import CompareService
from lattice.features.diag.service.diagnosing import DiagService
from lattice.features.health import http as health_http
from lattice.features.health.rpc import HealthRpc
from lattice.features.health.service import HealthService
from lattice.features.identity import http as identity_http
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.rpc import IdentityRpc
from lattice.features.identity.service import IdentityService
from lattice.features.link import http as link_http
from lattice.features.link.rpc import ProbeRpc
from lattice.features.link.service.probe import ProbeService
from lattice.features.locks.service.book import LockBook
from lattice.features.logs import http as logs_http
from lattice.features.logs.rpc import LogRpc
from lattice.features.logs.service.reading import LogReading
from lattice.features.nodes import http as nodes_http
from lattice.features.nodes.rpc import NodeRpc
from lattice.features.nodes.service.nodes import NodeOperations, NodeService
from lattice.features.report.service.reporting import ReportService
from lattice.features.sharing import http as sharing_http
from lattice.features.sharing.rpc import SharingRpc
from lattice.features.sharing.service.sharing import SharingService
from lattice.features.submit import http as submit_http
from lattice.features.submit.rpc import SubmitRpc
from lattice.features.submit.service.submitting import SubmitService
from lattice.features.watch.service.watching import Watching
from lattice.server.agents import AgentParts
from lattice.server.app import build_app
from lattice.server.attach import AttachParts, offer_attach, serve_attach
from lattice.server.compare import offer_compare, serve_compare
from lattice.server.description import Description
from lattice.server.diag import offer_diag, serve_diag
from lattice.server.figures import Figures
from lattice.server.gatekeeper import Gatekeeper
from lattice.server.grpcbounds import service_options
from lattice.server.journal import LoggedJournal
from lattice.server.locks import lock_service, offer_locks, serve_locks
from lattice.server.publicpace import PER_MINUTE
from lattice.server.report import offer_report, serve_report
from lattice.server.sharing import SharingParts
from lattice.server.telemetry import TelemetryParts, offer_telemetry, serve_telemetry
from lattice.server.top import TopParts, offer_top, serve_top
from lattice.server.watch import offer_watch, serve_watch
from lattice.wire.door import never_changes
from lattice.wire.guard import GuardedRoutes, GuardInterceptor
from lattice.wire.permissions import declared_permissions
from lattice.wire.v1.agents_pb2_grpc import add_AgentServiceServicer_to_server
from lattice.wire.v1.allocations_pb2_grpc import add_AllocationServiceServicer_to_server
from lattice.wire.v1.health_pb2_grpc import add_HealthServiceServicer_to_server
from lattice.wire.v1.identity_pb2_grpc import add_IdentityServiceServicer_to_server
from lattice.wire.v1.logs_pb2_grpc import add_LogServiceServicer_to_server
from lattice.wire.v1.nodes_pb2_grpc import add_NodeServiceServicer_to_server
from lattice.wire.v1.sharing_pb2_grpc import add_SharingServiceServicer_to_server
from lattice.wire.v1.submit_pb2_grpc import add_SubmitServiceServicer_to_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the outside gives the server: engines behind their ports, and who is whom."""

    scheduler: Scheduler
    operator: NodeOperator
    presences: Presences | None = None
    """None where there is no agreed state, and so no agents."""
    public_per_minute: int = PER_MINUTE
    """Calls without a token, of one address."""
    limits: CallerLimits | None = None
    """Given to the features that open sessions or answer paced questions."""
    verifier: TokenVerifier
    claim_names: ClaimNames
    discovery: AuthDiscovery
    clock: Clock
    figures: Figures
    log: structlog.stdlib.BoundLogger
    gate: SubmitGate | None = None
    state: StateStore | None = None
    cluster_record: StateView | None = None
    """The key `cluster`, kept in sight: whether the agreed state is there."""
    note: str = ""
    """What people should know of this server, for its health."""
    views: Vclusters = field(default_factory=Vclusters)
    agents: AgentParts | None = None
    """None where no identity is configured."""
    probe: ProbeService | None = None
    """None where no agents are served."""
    logs: LogReading | None = None
    """None where nothing is stored."""
    last_outputs: LastOutputs | None = None
    """None where no agents are served."""
    sharing: SharingParts | None = None
    """None where there is no agreed state."""
    locks: LockBook | None = None
    """None where there is no agreed state."""
    attach: AttachParts | None = None
    """None where no agents are served."""
    telemetry: TelemetryParts | None = None
    """None where no agents are served."""
    top: TopParts | None = None
    """None where no agents are served."""
    watch: Watching | None = None
    """None where no agents are served."""
    report: ReportService | None = None
    """None where there is no agreed state."""
    compare: CompareService | None = None
    """None where there is no agreed state."""
    diag: DiagService | None = None
    """None where no agents are served."""


@dataclass(frozen=True, slots=True)
class Faces:
    """What the server shows: REST and gRPC over the same services behind the same guard."""

    rest: FastAPI
    grpc: aio.Server
    routes: GuardedRoutes[Actor]


def compose(parts: Parts) -> Faces:  # noqa: PLR0915 - a line or two for every feature
    """Services, then the guard, then both faces."""
    permissions = declared_permissions()
    journal = LoggedJournal(parts.log, parts.figures)
    gatekeeper = Gatekeeper(parts.verifier, parts.claim_names, journal, parts.locks)
    next_change = parts.locks.next_change if parts.locks else never_changes
    routes: GuardedRoutes[Actor] = GuardedRoutes(
        permissions, gatekeeper, journal.defect, next_change
    )

    shared = parts.sharing
    allocations = AllocationService(
        parts.scheduler,
        parts.clock,
        shared.shares if shared else None,
        shared.notes if shared else None,
        parts.last_outputs,
    )
    sharing = (
        SharingService(
            parts.scheduler,
            AllocationFinder(parts.scheduler, parts.clock, shared.shares),
            shared.shares,
            shared.notes,
            parts.clock,
            shared.terms,
            journal,
        )
        if shared
        else None
    )
    nodes = NodeService(parts.scheduler, parts.presences)
    operations = NodeOperations(parts.scheduler, parts.operator, journal)
    identity = IdentityService(parts.scheduler, parts.discovery)
    health = HealthService(
        version=__version__,
        scheduler=parts.scheduler,
        state=parts.cluster_record,
        note=parts.note,
        figures=parts.figures.text,
        description=lambda: description.text(),  # noqa: PLW0108 - made below, from the routes
    )

    submit = SubmitService(
        parts.scheduler,
        parts.gate,
        parts.state,
        parts.views,
        parts.clock,
        limits=parts.limits,
    )

    allocations_http.offer(routes, allocations)
    submit_http.offer(routes, submit)
    nodes_http.offer(routes, nodes, operations)
    identity_http.offer(routes, identity)
    health_http.offer(routes, health)
    if parts.agents is not None:
        agents_http.offer(routes, parts.agents.enrolment, parts.agents.trust)
    if parts.probe is not None:
        link_http.offer(routes, parts.probe)
    if parts.logs is not None:
        logs_http.offer(routes, parts.logs)
    if sharing is not None:
        sharing_http.offer(routes, sharing)
    locking = lock_service(parts.locks, parts.scheduler, parts.clock, journal)
    offer_locks(locking, routes)
    offer_attach(parts.attach, routes)
    offer_telemetry(parts.telemetry, routes)
    offer_top(parts.top, routes)
    offer_watch(parts.watch, routes)
    offer_report(parts.report, routes)
    offer_compare(parts.compare, routes)
    offer_diag(parts.diag, routes)
    rest = build_app(routes, parts.figures, parts.log, parts.clock, parts.public_per_minute)
    description = Description(rest)

    grpc = aio.server(
        interceptors=[
            GuardInterceptor(permissions, gatekeeper, journal.defect, next_change=next_change)
        ],
        options=service_options(),
    )
    add_AllocationServiceServicer_to_server(AllocationRpc(allocations), grpc)
    add_SubmitServiceServicer_to_server(SubmitRpc(submit), grpc)
    add_NodeServiceServicer_to_server(NodeRpc(nodes, operations), grpc)
    add_IdentityServiceServicer_to_server(IdentityRpc(identity), grpc)
    add_HealthServiceServicer_to_server(HealthRpc(health), grpc)
    if parts.agents is not None:
        people = AgentRpc(parts.agents.enrolment, parts.agents.trust)
        add_AgentServiceServicer_to_server(people, grpc)
    if parts.probe is not None:
        grpc.add_generic_rpc_handlers((ProbeRpc(parts.probe).handlers(),))
    if parts.logs is not None:
        add_LogServiceServicer_to_server(LogRpc(parts.logs), grpc)
    if sharing is not None:
        add_SharingServiceServicer_to_server(SharingRpc(sharing), grpc)
    serve_locks(locking, grpc)
    serve_attach(parts.attach, routes, grpc)
    serve_telemetry(parts.telemetry, grpc)
    serve_top(parts.top, grpc)
    serve_watch(parts.watch, grpc)
    serve_report(parts.report, grpc)
    serve_compare(parts.compare, grpc)
    serve_diag(parts.diag, grpc)
    return Faces(rest, grpc, routes)
