"""The queries to the metric store about a run. Pure.

All figures are one query; a label on each value names its part. The queries use only Prometheus'
own PromQL.
"""

from __future__ import annotations

from dataclasses import replace

from lattice.domain.measured import SHOWN, Making, Shown
from lattice.domain.runsummary import MOST_POINTS
from lattice.observe.metric_query import (
    Again,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Moments,
    Over,
    Ranged,
)
from lattice.observe.shown_series import (
    HEARTBEATS,
    NODE,
    NODE_AND_GPU,
    shown_series,
    stored_series,
)
from lattice.observe.windows import COARSE_S, RunSteps, RunWindow, past_window

COUNTERS = (
    "cpu_seconds_total",
    "io_read_bytes_total",
    "io_write_bytes_total",
    "network_tx_bytes_total",
    "network_rx_bytes_total",
    "gpu_energy_joules_total",
)
_GROWTH = {"max": Over.MOST, "min": Over.LEAST, "resets": Over.RESETS, "increase": Over.INCREASE}
GAUGES = {
    "memory_used_bytes": ("max",),
    "memory_limit_bytes": ("max",),
    "memory_oom_kills_total": ("max",),
    "gpu_utilization_percent": ("avg", "max"),
    "gpu_memory_used_bytes": ("max",),
    "gpu_memory_total_bytes": ("max",),
}
_LEVELS = {"max": Over.MOST, "avg": Over.MEAN}


def coarse_steps(run: RunWindow, interval_s: float) -> RunSteps:
    """Return the steps of the stored series."""
    return run.steps(interval_s, MOST_POINTS, COARSE_S)


def figures_question(run: RunWindow) -> Either:
    """Query all figures that are one number per node or GPU."""

    def part(name: str, over: Over, metric: str) -> Figured:
        return Figured(f"{name} {metric}", Ranged(over, run.owner.of(metric), run.whole_s))

    newest = Gathered(Gather.MOST, Moments(run.owner.of(HEARTBEATS[0])))
    return Either(
        (
            *(part(name, over, each) for each in COUNTERS for name, over in _GROWTH.items()),
            *(part(name, _LEVELS[name], each) for each, names in GAUGES.items() for name in names),
            *(part("count", Over.SAMPLES, each) for each in HEARTBEATS),
            Figured("newest", newest),
        )
    )


def busiest_question(steps: RunSteps) -> Figured | None:
    """Query the most cores in use at one time; None if the run was too short."""
    rate_s = steps.window.rate_s
    if steps.run.length_s < 2 * rate_s:
        return None
    cores = stored_series(steps.run.owner, Shown.CPU_UTILIZATION, steps.window)
    return Figured("busiest", Again(Over.MOST, cores, steps.run.whole_s, rate_s))


def covered_question(steps: RunSteps) -> Expression:
    """Query how many nodes were measured, step by step."""
    samples = Ranged(Over.SAMPLES, steps.run.owner.of(HEARTBEATS[0]), steps.step_s)
    return Gathered(Gather.COUNT, Gathered(Gather.COUNT, samples, NODE))


def coarse_question(steps: RunSteps, metric: Shown) -> Either:
    """Query the parts `mean` and `peak` of one metric, step by step.

    A peak is the highest value of a single node or GPU.
    """
    owner = steps.run.owner
    if SHOWN[metric].making is Making.RATE and steps.step_s > 2 * COARSE_S:
        finer = past_window(COARSE_S, steps.interval_s)
        rate = shown_series(owner, metric, finer, NODE_AND_GPU)
        each: Expression = Again(Over.MOST, rate, steps.step_s, COARSE_S)
    else:
        highest = replace(steps.window, gauge=Over.MOST)
        each = shown_series(owner, metric, highest, NODE_AND_GPU)
    return Either(
        (
            Figured("mean", shown_series(owner, metric, steps.window)),
            Figured("peak", Gathered(Gather.MOST, each)),
        )
    )
