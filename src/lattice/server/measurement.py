"""Receives measurements, and asks nodes for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass

from grpc import aio

from lattice.access.grants import GrantSigner
from lattice.adapters.stateview import WatchedStateView
from lattice.base.clock import Clock
from lattice.base.supervisor import Loop, OnFailure, Supervisor
from lattice.domain.allocation import Allocation
from lattice.domain.metricstore import MetricStore
from lattice.domain.peer import PeerIdentity
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateStore, StateView
from lattice.domain.stream import NodeStreams
from lattice.features.telemetry.rpc import MetricIntakeRpc
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.job_settings_publisher import (
    JobSettingsPublisher,
    current_run,
)
from lattice.features.telemetry.service.modes import MODES, AgreedModes
from lattice.features.telemetry.service.node_follow import Means
from lattice.features.telemetry.service.node_snapshots import AgentSnapshots
from lattice.features.telemetry.service.sample_guard import SampleGuard
from lattice.features.telemetry.service.sample_writer import SampleWriting
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.foundation import LoggedJournal
from lattice.foundation.own_metrics import OwnMetrics
from lattice.foundation.unfinished import UnfinishedAllocations
from lattice.server.config.engine_sections import TelemetrySection
from lattice.wire.v1.telemetry_pb2_grpc import add_MetricIntakeServicer_to_server


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementNeeds:
    """The dependencies of measurement."""

    scheduler: Scheduler
    state: StateStore
    store: MetricStore | None
    """None: samples are not stored."""
    clock: Clock
    own_metrics: OwnMetrics
    journal: LoggedJournal
    supervisor: Supervisor
    is_sensitive: Callable[[Allocation], bool]
    believe: Callable[[PeerIdentity], None]
    """Raises `PermissionRefused` for a node's certificate that is not trusted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What agents call, and what features use."""

    intake: MetricIntakeRpc
    modes: AgreedModes
    attempts: AttemptFinder
    snapshots: AgentSnapshots

    def offer_agents(self, listener: aio.Server) -> None:
        """Add the intake to the listener for agents."""
        add_MetricIntakeServicer_to_server(self.intake, listener)


@asynccontextmanager
async def open_measurement(
    needs: MeasurementNeeds, section: TelemetrySection, nodes: NodeStreams, signer: GrantSigner
) -> AsyncIterator[Measurement]:
    """Measurement until the context ends."""
    clock, own_metrics, supervisor = needs.clock, needs.own_metrics, needs.supervisor
    view = WatchedStateView(needs.state, MODES, clock)
    modes = agreed_modes(needs.scheduler, needs.state, clock, section, view)
    run_of = current_run(needs.is_sensitive, clock) if section.nodes_write else None
    publisher = JobSettingsPublisher(needs.scheduler, modes, clock, run_of)
    attempts = AttemptFinder(needs.scheduler, clock)
    snapshots = AgentSnapshots(
        Means(nodes=nodes, signer=signer, clock=clock, find_attempt=attempts.of, modes=modes.of)
    )
    own_metrics.show(lambda: {"telemetry_nodes_followed": float(snapshots.followed)})
    own_metrics.show(
        lambda: {"telemetry_allocations_in_debug": float(modes.debugging)} if view.source.ok else {}
    )
    own_metrics.watch(lambda: {"telemetry_news_dropped_total": float(snapshots.dropped_total)})
    async with AsyncExitStack() as stack:
        stack.push_async_callback(snapshots.aclose)
        intake = None
        if needs.store is not None:
            intake = await stack.enter_async_context(_sample_intake(needs, needs.store, attempts))
        loops = supervisor.running(
            Loop("state telemetry", view.run, OnFailure.RESTART),
            Loop("telemetry told", publisher.run, OnFailure.RESTART),
        )
        await stack.enter_async_context(loops)
        yield Measurement(
            intake=MetricIntakeRpc(intake, publisher, needs.believe),
            modes=modes,
            attempts=attempts,
            snapshots=snapshots,
        )


@asynccontextmanager
async def _sample_intake(
    needs: MeasurementNeeds, store: MetricStore, attempts: AttemptFinder
) -> AsyncIterator[SampleIntake]:
    writing = SampleWriting(store, needs.clock)
    guard = SampleGuard(attempts.of, needs.clock, needs.is_sensitive)
    intake = SampleIntake(guard, writing, needs.journal)
    needs.own_metrics.watch(
        lambda: {
            f"telemetry_{name}": float(value)
            for name, value in (asdict(intake.counts) | asdict(writing.counts)).items()
        }
    )
    needs.own_metrics.show(lambda: {"telemetry_samples_waiting": float(writing.waiting)})
    async with writing.running(needs.supervisor):
        yield intake


def agreed_modes(
    scheduler: Scheduler,
    state: StateStore,
    clock: Clock,
    section: TelemetrySection,
    view: StateView,
) -> AgreedModes:
    refs = UnfinishedAllocations(scheduler).refs
    return AgreedModes(state, view, clock, refs, usual=section.mode, debug_most=section.debug_most)
