"""What the agent counts of its own process, besides telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.supervisor import Supervisor
from lattice.domain.metric import Kind
from lattice.features.telemetry.node.exposition import Figure


def process_figures(supervisor: Supervisor) -> Iterator[Figure]:
    """For the page of figures, read at each scrape."""
    for name, count in supervisor.failures.items():
        yield Figure(
            "lattice_loop_failures_total",
            Kind.COUNTER,
            "failures of background loops",
            float(count),
            (("loop", name),),
        )
