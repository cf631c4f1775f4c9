"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.domain.presence import slices_of
from lattice.features.allocations.operations import GET_ALLOCATION, LIST_ALLOCATIONS, LIST_HISTORY
from lattice.features.allocations.service import AllocationService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def wire(foundation: Foundation) -> Wiring:
    """Return the feature's part of the server."""
    service = AllocationService(
        foundation.scheduler,
        foundation.clock,
        foundation.shares,
        foundation.reads,
        foundation.last_outputs,
        foundation.finder,
        foundation.runs,
        foundation.sensitive,
        lambda allocation: slices_of(allocation, foundation.presences.presences()),
    )
    return Wiring(
        bindings=(
            LIST_ALLOCATIONS.to(service.recent),
            GET_ALLOCATION.to(
                lambda actor, asked: service.card(
                    actor, asked.id, last_output=asked.last_output, runs=asked.runs
                )
            ),
            LIST_HISTORY.to(service.history),
        )
    )
