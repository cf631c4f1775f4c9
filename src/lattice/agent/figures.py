"""What the agent counts of its own process, besides telemetry."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.pauses import LoopPauses
from lattice.base.supervisor import Supervisor
from lattice.domain.metric import Kind
from lattice.features.telemetry.node.exposition import Figure


def process_figures(supervisor: Supervisor, pauses: LoopPauses) -> Iterator[Figure]:
    """For the page of figures, read at each scrape."""
    for name, count in supervisor.failures.items():
        yield Figure(
            "lattice_loop_failures_total",
            Kind.COUNTER,
            "failures of background loops",
            float(count),
            (("loop", name),),
        )
    for name, kind, words, value in (
        ("longest_pause_seconds", Kind.GAUGE, "longest turn of the last minutes", pauses.longest_s),
        ("busy_seconds_total", Kind.COUNTER, "time its turns took", pauses.busy_s),
        ("turns_total", Kind.COUNTER, "turns of the event loop", float(pauses.turns)),
    ):
        yield Figure(f"lattice_event_loop_{name}", kind, words, value)
