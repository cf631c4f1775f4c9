"""The composition root: every part of the server is made here, in the order it is needed."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from fastapi import FastAPI
from grpc import aio

from lattice import __version__
from lattice.access.actor import Actor, ClaimNames
from lattice.access.tokens import TokenVerifier
from lattice.base.clock import Clock
from lattice.domain.scheduler import Scheduler
from lattice.features.allocations import http as allocations_http
from lattice.features.allocations.rpc import AllocationRpc
from lattice.features.allocations.service import AllocationService
from lattice.features.health import http as health_http
from lattice.features.health.rpc import HealthRpc
from lattice.features.health.service import HealthService
from lattice.features.identity import http as identity_http
from lattice.features.identity.model import AuthDiscovery
from lattice.features.identity.rpc import IdentityRpc
from lattice.features.identity.service import IdentityService
from lattice.features.nodes import http as nodes_http
from lattice.features.nodes.rpc import NodeRpc
from lattice.features.nodes.service import NodeService
from lattice.server.app import build_app, describe
from lattice.server.figures import Figures
from lattice.server.gatekeeper import Gatekeeper
from lattice.server.journal import LoggedJournal
from lattice.wire.guard import GuardedRoutes, GuardInterceptor
from lattice.wire.permissions import declared_permissions
from lattice.wire.v1.allocations_pb2_grpc import add_AllocationServiceServicer_to_server
from lattice.wire.v1.health_pb2_grpc import add_HealthServiceServicer_to_server
from lattice.wire.v1.identity_pb2_grpc import add_IdentityServiceServicer_to_server
from lattice.wire.v1.nodes_pb2_grpc import add_NodeServiceServicer_to_server

_LARGEST_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the outside gives the server: engines behind their ports, and who is whom."""

    scheduler: Scheduler
    verifier: TokenVerifier
    claim_names: ClaimNames
    discovery: AuthDiscovery
    clock: Clock
    figures: Figures
    log: structlog.stdlib.BoundLogger


@dataclass(frozen=True, slots=True)
class Faces:
    """What the server shows: REST and gRPC over the same services behind the same guard."""

    rest: FastAPI
    grpc: aio.Server
    routes: GuardedRoutes[Actor]


def compose(parts: Parts) -> Faces:
    """Services, then the guard, then both faces."""
    permissions = declared_permissions()
    journal = LoggedJournal(parts.log, parts.figures)
    gatekeeper = Gatekeeper(parts.verifier, parts.claim_names, journal)
    routes: GuardedRoutes[Actor] = GuardedRoutes(permissions, gatekeeper)

    allocations = AllocationService(parts.scheduler, parts.clock)
    nodes = NodeService(parts.scheduler)
    identity = IdentityService(parts.scheduler, parts.discovery)
    health = HealthService(
        version=__version__,
        scheduler=parts.scheduler,
        figures=parts.figures.text,
        description=lambda: describe(rest),
    )

    allocations_http.offer(routes, allocations)
    nodes_http.offer(routes, nodes)
    identity_http.offer(routes, identity)
    health_http.offer(routes, health)
    rest = build_app(routes, parts.figures, parts.log)

    grpc = aio.server(
        interceptors=[GuardInterceptor(permissions, gatekeeper, journal.defect)],
        options=[
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE_BYTES),
            # Otherwise a second server could take the same port, and half of the calls.
            ("grpc.so_reuseport", 0),
        ],
    )
    add_AllocationServiceServicer_to_server(AllocationRpc(allocations), grpc)
    add_NodeServiceServicer_to_server(NodeRpc(nodes), grpc)
    add_IdentityServiceServicer_to_server(IdentityRpc(identity), grpc)
    add_HealthServiceServicer_to_server(HealthRpc(health), grpc)
    return Faces(rest, grpc, routes)
