"""Wires the feature: its service and its operation."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.domain.presence import slices_of
from lattice.features.top.operations import QUERY_METRICS
from lattice.features.top.service.top import TopService
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.wiring import Wiring


def bindings(service: TopService) -> tuple[AnyBinding, ...]:
    return (QUERY_METRICS.to(lambda actor, asked: service.read(actor, asked.id, asked)),)


def wire(foundation: Foundation, nodes: NodeAccess) -> Wiring:
    service = TopService(
        foundation.scheduler,
        foundation.measurements,
        foundation.metrics,
        nodes.looks,
        nodes.modes,
        foundation.clock,
        foundation.limits,
        foundation.degraded,
        is_sensitive=foundation.sensitive.covers,
        slices=lambda allocation: slices_of(allocation, foundation.presences.presences()),
    )
    return Wiring(bindings=bindings(service))
