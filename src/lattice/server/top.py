"""The server's part of `top` and of the scoped Prometheus API, put together."""

from __future__ import annotations

from dataclasses import dataclass

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputDoor
from lattice.base.clock import Clock
from lattice.domain.scheduler import Scheduler
from lattice.domain.vcluster import Kind, Vclusters
from lattice.features.prometheus import http as prometheus_http
from lattice.features.prometheus.rpc import PrometheusRpc
from lattice.features.prometheus.service.asking import PrometheusService
from lattice.features.top import http as top_http
from lattice.features.top.rpc import MetricRpc
from lattice.features.top.service.looking import TopService
from lattice.server.sharing import SharingParts
from lattice.server.telemetry import TelemetryParts
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.prometheus_pb2_grpc import add_PrometheusServiceServicer_to_server
from lattice.wire.v1.top_pb2_grpc import add_MetricServiceServicer_to_server

_DEGRADED = "control plane degraded: the agreed state does not answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopParts:
    """What answers questions about metrics."""

    top: TopService
    prometheus: PrometheusService | None
    """None where there is no metric store."""


def top_parts(
    scheduler: Scheduler,
    telemetry: TelemetryParts,
    sharing: SharingParts,
    clock: Clock,
    views: Vclusters,
    limits: CallerLimits | None = None,
) -> TopParts:
    """For people."""
    finder = AllocationFinder(scheduler, clock, sharing.shares)
    top = TopService(
        scheduler,
        OutputDoor(finder, sharing.notes, clock),
        telemetry.store,
        telemetry.looks,
        telemetry.modes,
        clock,
        limits,
        lambda: "" if sharing.shares.source.ok else _DEGRADED,
        is_sensitive=lambda each: views.kind_of(each.vcluster) is Kind.SENSITIVE,
    )
    store = telemetry.store
    return TopParts(
        top=top, prometheus=PrometheusService(store, clock, limits) if store is not None else None
    )


def offer_top(parts: TopParts | None, routes: GuardedRoutes[Actor]) -> None:
    """Put the routes among the server's."""
    if parts is None:
        return
    top_http.offer(routes, parts.top)
    if parts.prometheus is not None:
        prometheus_http.offer(routes, parts.prometheus)


def serve_top(parts: TopParts | None, grpc: aio.Server) -> None:
    """The same over gRPC."""
    if parts is None:
        return
    add_MetricServiceServicer_to_server(MetricRpc(parts.top), grpc)
    if parts.prometheus is not None:
        add_PrometheusServiceServicer_to_server(PrometheusRpc(parts.prometheus), grpc)
