"""The server's part of comparisons, put together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputDoor
from lattice.base.clock import Clock
from lattice.domain.metricstore import MetricStore
from lattice.domain.objects import ObjectStore
from lattice.domain.scheduler import Scheduler
from lattice.domain.vcluster import Kind, Vclusters
from lattice.features.compare import http
from lattice.features.compare.rpc import CompareRpc
from lattice.features.compare.service.comparing import CompareService
from lattice.features.compare.service.finding import RunFinder
from lattice.features.compare.service.series import INTERVALS, SeriesSource
from lattice.server.sharing import SharingParts
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.compare_pb2_grpc import add_CompareServiceServicer_to_server


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareNeeds:
    """What comparisons stand on."""

    scheduler: Scheduler
    store: MetricStore | None
    """None: what is kept alone is compared."""
    objects: ObjectStore | None
    """None: nothing is kept."""
    sharing: SharingParts
    clock: Clock
    views: Vclusters = field(default_factory=Vclusters)
    limits: CallerLimits | None = None
    intervals: Collection[float] = INTERVALS
    """How closely runs may have been measured."""


def compare_service(needs: CompareNeeds) -> CompareService:
    """What both faces are given."""
    finder = AllocationFinder(needs.scheduler, needs.clock, needs.sharing.shares)
    return CompareService(
        RunFinder(
            needs.scheduler,
            OutputDoor(finder, needs.sharing.notes, needs.clock),
            needs.clock,
            lambda each: needs.views.kind_of(each.vcluster) is Kind.SENSITIVE,
        ),
        SeriesSource(needs.store, needs.objects, needs.clock, needs.intervals),
        needs.clock,
        needs.limits,
    )


def offer_compare(service: CompareService | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP."""
    if service is not None:
        http.offer(routes, service)


def serve_compare(service: CompareService | None, server: aio.Server) -> None:
    """Over gRPC."""
    if service is not None:
        add_CompareServiceServicer_to_server(CompareRpc(service), server)
