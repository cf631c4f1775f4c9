"""Wires the feature: its service, and the loop that stores run summaries."""

from __future__ import annotations

from dataclasses import asdict

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.features.report.operations import GET_REPORT
from lattice.features.report.service.keeping import SummaryKeeping
from lattice.features.report.service.kept import KeptSummaries
from lattice.features.report.service.measuring import RunMeter
from lattice.features.report.service.reporting import ReportService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: ReportService) -> tuple[AnyBinding, ...]:
    """Bind the operation to the service."""
    return (GET_REPORT.to(lambda actor, asked: service.report(actor, asked.id, asked.attempt)),)


def wire(foundation: Foundation) -> Wiring:
    """Return the feature's part of the server."""
    meter = RunMeter(foundation.metrics, foundation.accounting, foundation.clock)
    kept = KeptSummaries(foundation.objects) if foundation.objects is not None else None
    loops = []
    if kept is not None and foundation.metrics is not None:
        keeping = SummaryKeeping(
            foundation.scheduler,
            meter,
            kept,
            foundation.clock,
            foundation.replica,
            foundation.replicas,
        )
        foundation.own_metrics.watch(lambda: _counts(keeping))
        foundation.own_metrics.show(lambda: {"run_summaries_waiting": float(keeping.waiting)})
        loops.append(Loop("summaries of runs", keeping.run, OnFailure.RESTART))
    service = ReportService(
        foundation.scheduler,
        foundation.output,
        meter,
        kept,
        foundation.clock,
        foundation.limits,
    )
    return Wiring(bindings=bindings(service), loops=tuple(loops))


def _counts(keeping: SummaryKeeping) -> dict[str, float]:
    return {f"run_summaries_{name}": value for name, value in asdict(keeping.counts).items()}
