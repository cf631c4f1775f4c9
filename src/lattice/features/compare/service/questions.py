"""What the metric store is asked about a run. Pure; every selector has the run's scope."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Making, Shown, Summing
from lattice.domain.metric import Labels
from lattice.domain.promql import BadSelector, scope_of, selector

MOST_SAMPLES = 2880
"""Of one metric of one run: a day at 30 s."""
_RATE = 2.5
"""In intervals: a rate needs two samples, and a little for those that come late."""
_SUMS = {Summing.TOTAL: "sum", Summing.MEAN: "avg", Summing.WORST: "max"}
_SIGNS_OF_LIFE = ("cpu_seconds_total", "gpu_utilization_percent")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a run was, and whose series are its."""

    scope: Labels
    begin: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.begin

    def closely(self, samples: float, intervals: Collection[float]) -> float:
        """The shortest interval at which half of it was measured; else the longest there is.

        By what was measured: how closely a run is measured may change, and what was in force is
        forgotten when it is over.
        """
        least = [each for each in intervals if 2 * samples * each >= self.length_s]
        return min(least, default=max(intervals))

    def steps(self, interval_s: float) -> Steps:
        """As finely as it was measured, and not in more than can be handled."""
        step_s = max(1, math.ceil(interval_s), math.ceil(self.length_s / MOST_SAMPLES))
        return Steps(self, step_s, max(step_s, math.ceil(interval_s * _RATE)))


@dataclass(frozen=True, slots=True)
class Steps:
    """How finely a run is asked about."""

    life: Lifetime
    step_s: int
    rate_s: int

    def window_s(self, metric: Shown) -> int:
        """What one answer is about: so much time up to the moment that is asked for."""
        return self.step_s if SHOWN[metric].making is Making.LAST else self.rate_s

    @property
    def count(self) -> int:
        """Whole ones: what is under way is not measured yet."""
        return max(1, int(self.life.length_s // self.step_s))


def lifetime(attempt: JobAttempt, now: float) -> Lifetime:
    """Of an attempt that has started. Raises `BadSelector` where nobody's it is."""
    begun, ended = attempt.attempt.started, attempt.attempt.ended
    assert begun is not None
    begin = begun.timestamp()
    end = max(ended.timestamp() if ended is not None else now, begin + 1.0)
    scope = scope_of(attempt)
    if not all(dict(scope).get(each) for each in ("alloc", "attempt", "user")):
        # An empty matcher would match every series that lacks the label.
        raise BadSelector("a scope that scopes nothing")
    return Lifetime(scope, begin, end)


def series_question(steps: Steps, metric: Shown) -> str:
    """One metric of all its nodes and GPUs as one series, stretch by stretch."""
    showing = SHOWN[metric]
    series = selector(showing.series, steps.life.scope)
    times = f" * {showing.factor:g}" if showing.factor != 1.0 else ""
    if showing.making is Making.P99:
        buckets = f"sum by (node, le) (rate({series}[{steps.rate_s}s]))"
        return f"max(histogram_quantile(0.99, {buckets})){times}"
    if showing.making is Making.RATE:
        each = f"rate({series}[{steps.rate_s}s])"
    else:
        each = f"avg_over_time({series}[{steps.step_s}s])"
    # Two who measure the same count once.
    return f"{_SUMS[showing.summing]}(max by (node, gpu_uuid) ({each})){times}"


def origin_question(life: Lifetime) -> str:
    """Who measured on which node, and how often, over all its time."""
    length_s = max(1, math.ceil(life.length_s))
    parts = (
        f"max by (source, node) (count_over_time({selector(each, life.scope)}[{length_s}s]))"
        for each in _SIGNS_OF_LIFE
    )
    return " or ".join(parts)
