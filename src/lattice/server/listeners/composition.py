"""What people and services are offered: REST and gRPC with the same operations and guard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from grpc import aio

from lattice.access.actor import Actor, ClaimNames
from lattice.access.tokens import TokenVerifier
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.server.listeners.gatekeeper import Gatekeeper
from lattice.server.listeners.grpc_bounds import service_options
from lattice.server.listeners.public_pace import PER_MINUTE
from lattice.server.listeners.rest_app import build_app
from lattice.server.listeners.server_stop import ServerStop
from lattice.wire.guard import GuardedRoutes, GuardInterceptor, declared_permissions
from lattice.wire.interceptor import NextChange, never_changes
from lattice.wire.rest import offer
from lattice.wire.rpc import OperationHandlers


@dataclass(frozen=True, slots=True)
class Faces:
    """What the server offers to people and services."""

    rest: FastAPI
    grpc: aio.Server
    routes: GuardedRoutes[Actor]
    stop: ServerStop
    gatekeeper: Gatekeeper | None = None


def compose(
    foundation: Foundation,
    wirings: Sequence[Wiring],
    verifier: TokenVerifier,
    claim_names: ClaimNames,
    next_change: NextChange = never_changes,
    public_per_minute: int = PER_MINUTE,
) -> Faces:
    """Make the guard, then everything that the features offer behind it.

    `next_change`: when open streams are to be authorised again.
    """
    permissions = declared_permissions()
    journal = foundation.journal
    stop = ServerStop(next_change)
    gatekeeper = Gatekeeper(verifier, claim_names, journal, foundation.locks)
    routes: GuardedRoutes[Actor] = GuardedRoutes(
        permissions, gatekeeper, journal.defect, stop.next_change
    )
    guard = GuardInterceptor(
        permissions,
        gatekeeper,
        journal.defect,
        next_change=stop.next_change,
        finished=journal.finished,
    )
    grpc = aio.server(interceptors=[guard], options=service_options())
    bindings = [binding for each in wirings for binding in each.bindings]
    offer(routes, *bindings)
    grpc.add_generic_rpc_handlers((OperationHandlers(bindings),))
    for each in wirings:
        each.offer(routes, grpc)
    rest = build_app(
        routes, foundation.own_metrics, foundation.log, foundation.clock, public_per_minute
    )
    return Faces(rest, grpc, routes, stop, gatekeeper)
