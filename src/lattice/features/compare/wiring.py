"""Wires the feature: its service and its operation."""

from __future__ import annotations

from collections.abc import Collection

from lattice.base.operation import AnyBinding
from lattice.features.compare.model import CompareQuery, metrics_named
from lattice.features.compare.operations import COMPARE_METRICS, CompareRequest
from lattice.features.compare.service.compare import CompareService, RunFinder
from lattice.features.compare.service.series import SeriesSource
from lattice.features.compare.service.trainings import TrainingSource
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring
from lattice.observe.windows import INTERVALS


def bindings(service: CompareService) -> tuple[AnyBinding, ...]:
    return (COMPARE_METRICS.to(lambda actor, asked: service.compare(actor, _query(asked))),)


def _query(asked: CompareRequest) -> CompareQuery:
    """Build the query with parsed metrics. Raises `UsageError`."""
    return CompareQuery(ids=asked.ids, metrics=metrics_named(asked.metrics), align=asked.align)


def wire(foundation: Foundation, intervals: Collection[float] = INTERVALS) -> Wiring:
    """Return the feature's part of the server.

    `intervals` are the sampling intervals that runs may have.
    """
    return Wiring(bindings=bindings(compare_service(foundation, intervals)))


def compare_service(
    foundation: Foundation, intervals: Collection[float] = INTERVALS
) -> CompareService:
    """Return the service as a server has it."""
    return CompareService(
        RunFinder(
            foundation.scheduler,
            foundation.measurements,
            foundation.clock,
            foundation.sensitive.covers,
        ),
        SeriesSource(foundation.metrics, foundation.objects, foundation.clock, intervals),
        TrainingSource(foundation.runs),
        foundation.clock,
        foundation.limits,
    )
