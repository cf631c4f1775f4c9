"""The server's part of telemetry, put together: what takes samples in, and what features ask.

In two steps, because the agents' listener stands between them: `open_telemetry` is what agents
call, `telemetry_parts` what is asked of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass

from grpc import aio

from lattice.access.actor import Actor
from lattice.access.finding import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.adapters.metricstore.store import HttpMetricStore, StorePlace
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import AttemptFinder
from lattice.domain.metricstore import MetricStore
from lattice.domain.nodelook import NodeLooks
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore, StateView
from lattice.domain.stream import NodeStreams
from lattice.domain.telemetry import ModeOf
from lattice.domain.vcluster import Kind, Vclusters
from lattice.features.telemetry import http
from lattice.features.telemetry.rpc import MetricIntakeRpc, TelemetryRpc
from lattice.features.telemetry.service.following import Means
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.looks import AgentLooks
from lattice.features.telemetry.service.modes import MODES, AgreedModes
from lattice.features.telemetry.service.switching import TelemetrySwitching
from lattice.features.telemetry.service.telling import JobTelling, run_under_way
from lattice.features.telemetry.service.writing import SampleWriting
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.server.sharing import SharingParts
from lattice.server.telemetrysection import TelemetrySection
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryParts:
    """What both faces and the features that show measurements are given."""

    store: MetricStore | None
    """None where no metric store is named in the configuration."""
    looks: NodeLooks
    modes: ModeOf
    """By an allocation's `ref`; its bare id does too."""
    switching: TelemetrySwitching


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryNeeds:
    """What telemetry stands on."""

    scheduler: Scheduler
    state: StateStore
    sharing: SharingParts
    clock: Clock
    views: Vclusters
    figures: Figures
    journal: LoggedJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryIntake:
    """What agents call, and what the rest is made of."""

    rpc: MetricIntakeRpc
    store: MetricStore | None
    modes: AgreedModes
    attempts: AttemptFinder


@asynccontextmanager
async def open_metric_store(
    section: TelemetrySection, clock: Clock
) -> AsyncIterator[MetricStore | None]:
    """None where none is named. Nothing is asked of it yet, so a server starts while it is away."""
    if section.tsdb_endpoint is None:
        yield None
        return
    store = HttpMetricStore(
        StorePlace(
            endpoint=section.tsdb_endpoint,
            username=section.tsdb_username or "",
            password_file=section.tsdb_password_file,
            bearer_file=section.tsdb_bearer_file,
            ca=section.tsdb_ca,
        ),
        clock,
    )
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_telemetry(
    needs: TelemetryNeeds,
    section: TelemetrySection,
    store: MetricStore | None,
    supervisor: Supervisor,
) -> AsyncIterator[TelemetryIntake]:
    """Until the context ends."""

    def is_sensitive(allocation: Allocation) -> bool:
        return needs.views.kind_of(allocation.vcluster) is Kind.SENSITIVE

    view = WatchedStateView(needs.state, MODES, needs.clock)
    modes = agreed_modes(needs, section, view)
    run_of = run_under_way(is_sensitive, needs.clock) if section.nodes_write else None
    telling = JobTelling(needs.scheduler, modes, needs.clock, run_of)
    attempts = AttemptFinder(needs.scheduler, needs.clock)
    async with AsyncExitStack() as stack:
        intake = None
        if store is not None:
            writing = SampleWriting(store, needs.clock)
            await stack.enter_async_context(writing.running(supervisor))
            intake = SampleIntake(attempts.of, writing, needs.clock, needs.journal, is_sensitive)
            _show(needs.figures, intake, writing)
        needs.figures.show(lambda: {"telemetry_allocations_in_debug": float(modes.debugging)})
        async with supervisor.running(
            Loop("state telemetry", view.run, OnFailure.RESTART),
            Loop("telemetry told", telling.run, OnFailure.RESTART),
        ):
            yield TelemetryIntake(
                rpc=MetricIntakeRpc(intake, telling), store=store, modes=modes, attempts=attempts
            )


def agreed_modes(needs: TelemetryNeeds, section: TelemetrySection, view: StateView) -> AgreedModes:
    """The modes as this cluster has them."""

    def unfinished() -> frozenset[str] | None:
        try:
            reading = needs.scheduler.live()
        except Unavailable:
            return None
        if not reading.source.ok:
            return None
        there = reading.cluster.allocations
        return frozenset(each.ref for each in there if not each.state.finished)

    return AgreedModes(
        needs.state,
        view,
        needs.clock,
        unfinished,
        usual=section.mode,
        debug_most=section.debug_most,
    )


@asynccontextmanager
async def open_telemetry_parts(
    needs: TelemetryNeeds, intake: TelemetryIntake, nodes: NodeStreams, signer: GrantSigner
) -> AsyncIterator[TelemetryParts]:
    """For people, until the context ends."""
    looks = AgentLooks(
        Means(
            nodes=nodes,
            signer=signer,
            clock=needs.clock,
            whose=intake.attempts.of,
            modes=intake.modes.of,
        )
    )
    needs.figures.show(lambda: {"telemetry_nodes_followed": float(looks.followed)})
    needs.figures.watch(lambda: {"telemetry_news_dropped_total": float(looks.dropped_total)})
    try:
        yield TelemetryParts(
            store=intake.store,
            looks=looks,
            modes=intake.modes.of,
            switching=telemetry_switching(needs, intake.modes),
        )
    finally:
        await looks.aclose()


def telemetry_switching(needs: TelemetryNeeds, modes: AgreedModes) -> TelemetrySwitching:
    """What people ask, and owners do."""
    return TelemetrySwitching(
        AllocationFinder(needs.scheduler, needs.clock, needs.sharing.shares),
        modes,
        needs.sharing.notes,
        needs.clock,
        needs.journal,
    )


def offer_telemetry(parts: TelemetryParts | None, routes: GuardedRoutes[Actor]) -> None:
    """Over HTTP, where agents are served."""
    if parts is not None:
        http.offer(routes, parts.switching)


def serve_telemetry(parts: TelemetryParts | None, server: aio.Server) -> None:
    """Over gRPC."""
    if parts is not None:
        add_TelemetryServiceServicer_to_server(TelemetryRpc(parts.switching), server)


def _show(figures: Figures, intake: SampleIntake, writing: SampleWriting) -> None:
    figures.watch(
        lambda: {
            f"telemetry_{name}": float(value)
            for name, value in (asdict(intake.counts) | asdict(writing.counts)).items()
        }
    )
    figures.show(lambda: {"telemetry_samples_waiting": float(writing.waiting)})
