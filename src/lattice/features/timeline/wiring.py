"""Wires the feature: its service, its operation, and the loop that stores events."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.log_volume import LogVolumes
from lattice.domain.session_span import SessionSpans
from lattice.features.timeline.operations import GET_TIMELINE
from lattice.features.timeline.service.figures import AttemptFigures
from lattice.features.timeline.service.run_events import (
    AttemptEvents,
    RunEventLoop,
    StoredRunEvents,
)
from lattice.features.timeline.service.timeline import TimelineService, TimelineSources
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: TimelineService) -> tuple[AnyBinding, ...]:
    return (GET_TIMELINE.to(lambda actor, asked: service.timeline(actor, asked.id)),)


def timeline_service(
    foundation: Foundation, sessions: SessionSpans | None, volumes: LogVolumes | None = None
) -> TimelineService:
    clock, objects = foundation.clock, foundation.objects
    nodes = foundation.nodes.looks if foundation.nodes is not None else None
    stored = StoredRunEvents(objects) if objects is not None else None
    sources = TimelineSources(
        clock=clock,
        figures=AttemptFigures(foundation.metrics, objects, clock),
        runs=foundation.runs,
        reads=foundation.reads,
        events=AttemptEvents(nodes, stored, clock),
        sessions=sessions,
        volumes=volumes,
    )
    return TimelineService(foundation.measurements, sources, foundation.limits)


def wire(
    foundation: Foundation,
    sessions: SessionSpans | None = None,
    volumes: LogVolumes | None = None,
) -> Wiring:
    """Return the feature's part of the server.

    `sessions` reads the records of terminals, `volumes` how much attempts wrote.
    """
    return Wiring(
        bindings=bindings(timeline_service(foundation, sessions, volumes)),
        loops=_storing(foundation),
    )


def _storing(foundation: Foundation) -> tuple[Loop, ...]:
    if foundation.nodes is None or foundation.objects is None:
        return ()
    loop = RunEventLoop(
        foundation.scheduler,
        foundation.nodes.looks,
        StoredRunEvents(foundation.objects),
        foundation.clock,
        foundation.replica,
        foundation.replicas,
        foundation.sensitive.covers,
    )
    foundation.own_metrics.watch(lambda: {"run_events_written_total": float(loop.written_total)})
    return (Loop("events of runs", loop.run, OnFailure.RESTART),)
