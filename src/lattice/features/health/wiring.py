"""Wires the feature: its service, its operation and its text routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from grpc import aio

from lattice import __version__
from lattice.access.actor import Actor
from lattice.base.operation import AnyBinding
from lattice.domain.state import StateView
from lattice.features.health import wire as own_wire
from lattice.features.health.operations import GET_HEALTH
from lattice.features.health.service import HealthService
from lattice.features.health.wire import HealthRpc
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def bindings(service: HealthService) -> tuple[AnyBinding, ...]:
    """Bind the operation to the service."""
    return (GET_HEALTH.to(lambda _actor, _asked: service.health()),)


def wire(
    foundation: Foundation,
    state: StateView,
    note: str = "",
    *,
    description: Callable[[], Awaitable[str]],
) -> Wiring:
    """Return the feature's part of the server.

    `state` reports whether the state store answers; `note` is a message for people about it.
    """
    service = HealthService(
        version=__version__,
        scheduler=foundation.scheduler,
        state=state,
        note=note,
        figures=foundation.own_metrics.text,
        description=description,
    )

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, service)
        server.add_generic_rpc_handlers((HealthRpc(service).handlers(),))

    return Wiring(bindings=bindings(service), offer=offer)
