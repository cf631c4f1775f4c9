"""What the metric store is asked about a run. Pure; every selector has the run's scope.

All figures are one question: each part is marked with a label, and what the store answers is told
apart by it. Only what Prometheus itself understands is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Making, Shown, Summing
from lattice.domain.metric import Labels
from lattice.domain.promql import selector
from lattice.domain.runsummary import MOST_POINTS

PART = "figure"
"""The label that marks a part of a question."""
_SLACK_S = 5.0
"""Clocks of servers and Slurm may differ a little; the scope keeps other runs out."""
_LEAST_STEP_S = 60
_RATE_S = 90
"""Two samples at least, at the usual 30 s."""
_BUSY_S = 120
_SUMS = {Summing.TOTAL: "sum", Summing.MEAN: "avg", Summing.WORST: "max"}
COUNTERS = (
    "cpu_seconds_total",
    "io_read_bytes_total",
    "io_write_bytes_total",
    "network_tx_bytes_total",
    "network_rx_bytes_total",
    "gpu_energy_joules_total",
)
GAUGES = {
    "memory_used_bytes": ("max",),
    "memory_limit_bytes": ("max",),
    "memory_oom_kills_total": ("max",),
    "gpu_utilization_percent": ("avg", "max"),
    "gpu_memory_used_bytes": ("max",),
    "gpu_memory_total_bytes": ("max",),
}


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a run was, and whose series are its."""

    scope: Labels
    begin: float
    end: float

    @property
    def length_s(self) -> int:
        return max(1, math.ceil(self.end - self.begin + 2 * _SLACK_S))

    @property
    def at(self) -> float:
        """The moment at which the figures are asked for."""
        return self.end + _SLACK_S

    @property
    def step_s(self) -> int:
        """The length of a stretch of the coarse series."""
        return max(_LEAST_STEP_S, math.ceil((self.end - self.begin) / MOST_POINTS))

    @property
    def steps(self) -> int:
        return max(1, int((self.end - self.begin) // self.step_s))

    def over(self, function: str, metric: str, seconds: int | None = None) -> str:
        """`function(series[…])`, over the whole life unless told otherwise."""
        return f"{function}({selector(metric, self.scope)}[{seconds or self.length_s}s])"


def lifetime(attempt: JobAttempt, scope: Labels, now: float) -> Lifetime:
    """Of an attempt that has started."""
    begun, ended = attempt.attempt.started, attempt.attempt.ended
    assert begun is not None
    end = ended.timestamp() if ended is not None else now
    return Lifetime(scope, begun.timestamp(), max(end, begun.timestamp()))


def figures_question(life: Lifetime) -> str:
    """Everything that is one number a node or a GPU."""
    parts: dict[str, str] = {}
    for metric in COUNTERS:
        for function in ("max", "min"):
            parts[f"{function} {metric}"] = life.over(f"{function}_over_time", metric)
        parts[f"resets {metric}"] = life.over("resets", metric)
        parts[f"increase {metric}"] = life.over("increase", metric)
    for metric, functions in GAUGES.items():
        for function in functions:
            parts[f"{function} {metric}"] = life.over(f"{function}_over_time", metric)
    parts["count cpu_seconds_total"] = life.over("count_over_time", "cpu_seconds_total")
    newest = selector("cpu_seconds_total", life.scope)
    parts["newest"] = f"max(timestamp({newest}))"
    busy_s = max(_BUSY_S, life.step_s)
    if life.end - life.begin >= 2 * busy_s:
        rate = life.over("rate", "cpu_seconds_total", busy_s)
        parts["busiest"] = (
            f"max_over_time((sum(max by (node) ({rate})))[{life.length_s}s:{busy_s}s])"
        )
    return together(parts)


def covered_question(life: Lifetime) -> str:
    """How many nodes were measured, stretch by stretch."""
    counted = life.over("count_over_time", "cpu_seconds_total", life.step_s)
    return f"count(count by (node) ({counted}))"


def coarse_question(life: Lifetime, metric: Shown) -> str:
    """The parts `mean` and `peak` of one shown metric, stretch by stretch."""
    showing = SHOWN[metric]
    series, step_s = showing.series, life.step_s
    times = f" * {showing.factor:g}" if showing.factor != 1.0 else ""
    if showing.making is Making.P99:
        rate = life.over("rate", series, max(step_s, _RATE_S))
        worst = f"max(histogram_quantile(0.99, sum by (node, le) ({rate}))){times}"
        return together({"mean": worst, "peak": worst})
    if showing.making is Making.RATE:
        mean = life.over("rate", series, max(step_s, _RATE_S))
        peak = mean
        if step_s > 2 * _LEAST_STEP_S:
            finer = life.over("rate", series, _RATE_S)
            peak = f"max_over_time({finer}[{step_s}s:{_LEAST_STEP_S}s])"
    else:
        mean = life.over("avg_over_time", series, step_s)
        peak = life.over("max_over_time", series, step_s)
    # Two who measure the same count once.
    once = f"max by (node, gpu_uuid) ({mean})"
    return together(
        {"mean": f"{_SUMS[showing.summing]}({once}){times}", "peak": f"max({peak}){times}"}
    )


def together(parts: Mapping[str, str]) -> str:
    """One question of several, each marked with its name."""
    return " or ".join(
        f'label_replace({each}, "{PART}", "{name}", "", "")' for name, each in parts.items()
    )
