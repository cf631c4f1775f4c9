"""Wires the feature: its service and its operation."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.domain.session_span import SessionSpans
from lattice.features.timeline.operations import GET_TIMELINE
from lattice.features.timeline.service.figures import AttemptFigures
from lattice.features.timeline.service.timeline import TimelineService, TimelineSources
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: TimelineService) -> tuple[AnyBinding, ...]:
    return (GET_TIMELINE.to(lambda actor, asked: service.timeline(actor, asked.id)),)


def timeline_service(foundation: Foundation, sessions: SessionSpans | None) -> TimelineService:
    clock = foundation.clock
    sources = TimelineSources(
        clock=clock,
        figures=AttemptFigures(foundation.metrics, foundation.objects, clock),
        runs=foundation.runs,
        reads=foundation.reads,
        snapshots=foundation.nodes.looks if foundation.nodes is not None else None,
        sessions=sessions,
    )
    return TimelineService(foundation.measurements, sources, foundation.limits)


def wire(foundation: Foundation, sessions: SessionSpans | None = None) -> Wiring:
    """Return the feature's part of the server. `sessions` reads the records of terminals."""
    return Wiring(bindings=bindings(timeline_service(foundation, sessions)))
