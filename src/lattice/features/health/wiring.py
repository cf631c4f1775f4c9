"""Wires the feature: its service, its operation and its text routes."""

from __future__ import annotations

from grpc import aio

from lattice import __version__
from lattice.access.actor import Actor
from lattice.domain.state import StateView
from lattice.features.health import wire as own_wire
from lattice.features.health.operations import GET_HEALTH
from lattice.features.health.service import HealthService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def wire(
    foundation: Foundation,
    state: StateView | None,
    note: str = "",
    *,
    description: own_wire.Description,
) -> Wiring:
    """Return the feature's part of the server.

    `state` reports whether the state store answers; None: there is none that lasts. `note` is a
    message for people about it.
    """
    service = HealthService(
        version=__version__, scheduler=foundation.scheduler, state=state, note=note
    )
    figures = foundation.own_metrics.text

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, figures, description)
        server.add_generic_rpc_handlers((own_wire.handlers(figures, description),))

    health = GET_HEALTH.to(lambda _actor, _asked: service.health())
    return Wiring(bindings=(health,), offer=offer)
