"""Wires the feature: its service and its routes."""

from __future__ import annotations

from grpc import aio

from lattice.access.actor import Actor
from lattice.features.prometheus import wire as own_wire
from lattice.features.prometheus.service.queries import PrometheusService
from lattice.features.prometheus.wire import PrometheusRpc
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.prometheus_pb2_grpc import add_PrometheusServiceServicer_to_server


def wire(foundation: Foundation) -> Wiring:
    """Return the feature's part of the server; nothing without a metric store."""
    if foundation.metrics is None:
        return Wiring()
    service = PrometheusService(foundation.metrics, foundation.clock, foundation.limits)

    def offer(routes: GuardedRoutes[Actor], server: aio.Server) -> None:
        own_wire.offer(routes, service)
        add_PrometheusServiceServicer_to_server(PrometheusRpc(service), server)

    return Wiring(offer=offer)
