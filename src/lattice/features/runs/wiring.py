"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.features.runs.operations import FIND_RUNS, LIST_RUNS
from lattice.features.runs.service import RunService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: RunService) -> tuple[AnyBinding, ...]:
    return (
        LIST_RUNS.to(
            lambda actor, asked: service.of_allocation(actor, asked.id, lineage=asked.lineage)
        ),
        FIND_RUNS.to(lambda actor, asked: service.named(actor, asked.name)),
    )


def wire(foundation: Foundation) -> Wiring:
    """Return the feature's part of the server."""
    service = RunService(foundation.measurements, foundation.runs, foundation.limits)
    return Wiring(bindings=bindings(service))
