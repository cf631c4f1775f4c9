"""The server's part of watch, put together: who may look, at what, and the faces it has."""

from __future__ import annotations

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputDoor
from lattice.base.clock import Clock
from lattice.domain.scheduler import Scheduler
from lattice.features.watch import http as watch_http
from lattice.features.watch.rpc import WatchRpc
from lattice.features.watch.service.watch import Sources
from lattice.features.watch.service.watching import Watching
from lattice.server.sharing import SharingParts
from lattice.server.telemetry import TelemetryParts
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.watch_pb2_grpc import add_WatchServiceServicer_to_server


def watching_of(
    telemetry: TelemetryParts,
    scheduler: Scheduler,
    sharing: SharingParts,
    clock: Clock,
    limits: CallerLimits | None,
) -> Watching:
    """For people. It owns nothing that outlives a stream."""
    finder = AllocationFinder(scheduler, clock, sharing.shares)
    return Watching(
        Sources(scheduler, telemetry.looks, clock, telemetry.modes),
        OutputDoor(finder, sharing.notes, clock),
        limits,
    )


def offer_watch(watching: Watching | None, routes: GuardedRoutes[Actor]) -> None:
    """Its route, where agents are served."""
    if watching is not None:
        watch_http.offer(routes, watching)


def serve_watch(watching: Watching | None, grpc: aio.Server) -> None:
    """The same over gRPC."""
    if watching is not None:
        add_WatchServiceServicer_to_server(WatchRpc(watching), grpc)
