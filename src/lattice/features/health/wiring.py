"""Wires the feature: its service, its operation, its other routes, and its watch of engines."""

from __future__ import annotations

from collections.abc import Callable

from grpc import aio

from lattice import __version__
from lattice.access.actor import Actor
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.state import StateView
from lattice.features.health import wire as own_wire
from lattice.features.health.operations import GET_HEALTH
from lattice.features.health.service.engines import EngineWatch, Members
from lattice.features.health.service.health import HealthService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes


def wire(
    foundation: Foundation,
    state: StateView | None,
    note: str = "",
    *,
    description: own_wire.Description,
    accounting: Callable[[], str] = lambda: "",
    accounting_age_s: Callable[[], float | None] = lambda: None,
    members: Members | None = None,
) -> Wiring:
    """Return the feature's part of the server.

    `state` reports whether the state store answers; None: there is none that lasts. `note` is a
    message for people about it. `accounting` returns why slurmdbd does not answer, and
    `accounting_age_s` the age of its newest answer. `members` counts those of etcd.
    """
    watch = EngineWatch(foundation.metrics, foundation.objects, foundation.clock, members=members)
    service = HealthService(
        version=__version__,
        scheduler=foundation.scheduler,
        engines=watch,
        state=state,
        note=note,
        accounting=accounting,
        accounting_age_s=accounting_age_s,
    )
    foundation.own_metrics.read(service.values)
    figures = foundation.own_metrics.text

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        ready = service.readiness
        own_wire.offer(routes, figures, description, ready)
        server.add_generic_rpc_handlers((own_wire.handlers(figures, description, ready),))

    health = GET_HEALTH.to(lambda _actor, _asked: service.health())
    engines = Loop("health of engines", watch.run, OnFailure.RESTART)
    return Wiring(bindings=(health,), offer=offer, loops=(engines,))
