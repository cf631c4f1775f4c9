"""The server's part of reports, put together: who answers for them, and who keeps summaries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputDoor
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.accounted import Accounting
from lattice.domain.metricstore import MetricStore
from lattice.domain.objects import ObjectStore
from lattice.domain.scheduler import Scheduler
from lattice.features.report import http
from lattice.features.report.rpc import ReportRpc
from lattice.features.report.service.keeping import SummaryKeeping
from lattice.features.report.service.kept import KeptSummaries
from lattice.features.report.service.measuring import RunMeter
from lattice.features.report.service.reporting import ReportService
from lattice.server.figures import Figures
from lattice.server.sharing import SharingParts
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.report_pb2_grpc import add_ReportServiceServicer_to_server


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNeeds:
    """What reports stand on."""

    scheduler: Scheduler
    store: MetricStore | None
    """None: Slurm's accounting alone is asked, and nothing is kept."""
    accounting: Accounting | None
    objects: ObjectStore | None
    """None: nothing is kept."""
    sharing: SharingParts
    clock: Clock
    limits: CallerLimits | None = None
    replica: str = ""
    replicas: Callable[[], Collection[str]] = tuple
    """The ids of the servers that are up."""


@asynccontextmanager
async def open_report(
    needs: ReportNeeds, figures: Figures, supervisor: Supervisor
) -> AsyncIterator[ReportService]:
    """Until the context ends."""
    meter = RunMeter(needs.store, needs.accounting, needs.clock)
    kept = KeptSummaries(needs.objects) if needs.objects is not None else None
    loops = []
    if kept is not None and needs.store is not None:
        keeping = SummaryKeeping(
            needs.scheduler, meter, kept, needs.clock, needs.replica, needs.replicas
        )
        figures.watch(lambda: _counts(keeping))
        figures.show(lambda: {"run_summaries_waiting": float(keeping.waiting)})
        loops.append(Loop("summaries of runs", keeping.run, OnFailure.RESTART))
    async with supervisor.running(*loops):
        yield report_service(needs, meter, kept)


def report_service(
    needs: ReportNeeds, meter: RunMeter, kept: KeptSummaries | None
) -> ReportService:
    """What both faces are given."""
    finder = AllocationFinder(needs.scheduler, needs.clock, needs.sharing.shares)
    return ReportService(
        needs.scheduler,
        OutputDoor(finder, needs.sharing.notes, needs.clock),
        meter,
        kept,
        needs.clock,
        needs.limits,
    )


def offer_report(service: ReportService | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP."""
    if service is not None:
        http.offer(routes, service)


def serve_report(service: ReportService | None, server: aio.Server) -> None:
    """Over gRPC."""
    if service is not None:
        add_ReportServiceServicer_to_server(ReportRpc(service), server)


def _counts(keeping: SummaryKeeping) -> dict[str, float]:
    return {f"run_summaries_{name}": value for name, value in asdict(keeping.counts).items()}
