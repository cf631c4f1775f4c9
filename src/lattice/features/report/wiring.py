"""Wires the feature: its service, and the loop that stores run summaries."""

from __future__ import annotations

from dataclasses import asdict

from lattice.base.operation import AnyBinding
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.presence import may_be_in_slice
from lattice.features.report.operations import GET_REPORT
from lattice.features.report.service.report import ReportService
from lattice.features.report.service.run_meter import RunMeter
from lattice.features.report.service.summaries import StoredSummaries, SummaryLoop
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: ReportService) -> tuple[AnyBinding, ...]:
    return (GET_REPORT.to(lambda actor, asked: service.report(actor, asked.id, asked.attempt)),)


def wire(foundation: Foundation) -> Wiring:
    meter = RunMeter(
        foundation.metrics,
        foundation.accounting,
        foundation.clock,
        lambda run: may_be_in_slice(
            run.allocation, run.attempt.nodes, foundation.presences.presences()
        ),
    )
    summaries = StoredSummaries(foundation.objects) if foundation.objects is not None else None
    loops = []
    if summaries is not None and foundation.metrics is not None:
        loop = SummaryLoop(
            foundation.scheduler,
            meter,
            summaries,
            foundation.clock,
            foundation.replica,
            foundation.replicas,
            foundation.sensitive.covers,
        )
        foundation.own_metrics.watch(
            lambda: {f"run_summaries_{name}": value for name, value in asdict(loop.counts).items()}
        )
        foundation.own_metrics.show(lambda: {"run_summaries_waiting": float(loop.waiting)})
        loops.append(Loop("summaries of runs", loop.run, OnFailure.RESTART))
    service = ReportService(
        foundation.scheduler,
        foundation.measurements,
        meter,
        summaries,
        foundation.clock,
        foundation.limits,
        foundation.runs,
    )
    return Wiring(bindings=bindings(service), loops=tuple(loops))
