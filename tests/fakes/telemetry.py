"""The server's part of telemetry over a state in memory, with modes always in sight."""

from __future__ import annotations

import logging

import structlog

from lattice.domain.nodelook import NodeLooks
from lattice.domain.vcluster import Vclusters
from lattice.features.telemetry.service.modes import MODES
from lattice.server.figures import Figures
from lattice.server.journal import LoggedJournal
from lattice.server.sharing import SharingParts
from lattice.server.telemetry import (
    TelemetryNeeds,
    TelemetryParts,
    agreed_modes,
    telemetry_switching,
)
from lattice.server.telemetrysection import TelemetrySection
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.node_looks import InMemoryNodeLooks

_Silent = structlog.make_filtering_bound_logger(logging.CRITICAL)


def telemetry_parts(
    scheduler: InMemoryScheduler,
    state: InMemoryStateStore,
    sharing: SharingParts,
    looks: NodeLooks | None = None,
) -> TelemetryParts:
    """As the server would make them."""
    figures = Figures()
    needs = TelemetryNeeds(
        scheduler=scheduler,
        state=state,
        sharing=sharing,
        clock=state.clock,
        views=Vclusters(),
        figures=figures,
        journal=LoggedJournal(structlog.wrap_logger(None, wrapper_class=_Silent), figures),
    )
    modes = agreed_modes(needs, TelemetrySection(), InMemoryStateView(state, MODES))
    return TelemetryParts(
        store=None,
        looks=looks or InMemoryNodeLooks(),
        modes=modes.of,
        switching=telemetry_switching(needs, modes),
    )
