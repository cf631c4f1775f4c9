"""The means of counters over a stretch of time: what was counted, and between which moments. Pure.

A rate over a long stretch is guessed up to the edges of it, by each store in its own way, and so is
too low where samples begin late. What a counter rose is exact, and so are the moments of a node's
first and last sample. They are looked for once a node and not for every counter, because a store
finds them only by looking again and again: all that a node measures it measures at one moment. A
counter that was begun anew, or has not a sample at each of those moments, has its rate instead.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.measured import SHOWN, Making, Shown, summed
from lattice.domain.metricstore import SeriesPoints
from lattice.features.top.service.promql import (
    FIGURE,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Lasted,
    Over,
    OwnerFilter,
    Ranged,
    Risen,
)

_CLOCK = "cpu_seconds_total"
"""Measured whenever anything is."""
_LASTED, _OFTEN = "lasted", "often"
_RISEN, _RATE, _RESETS, _SAMPLES = "risen", "rate", "resets", "samples"
_STEPS, _LOOKS_A_SAMPLE = 240, 2

Means = Mapping[tuple[Shown, str], float]
"""By metric and node, in the unit that is shown."""


def step_s(duration_s: int, interval_s: float) -> int:
    """How far apart the first and the last sample of a node are looked for."""
    return max(math.ceil(interval_s / _LOOKS_A_SAMPLE), math.ceil(duration_s / _STEPS))


@dataclass(frozen=True, slots=True)
class Climbs:
    """The question about an owner's counters, and what its answer means."""

    owner: OwnerFilter
    metrics: Sequence[Shown]

    def query(self, at: float, duration_s: int, interval_s: float) -> Either | None:
        """Up to `at`, by node whatever is shown; None where no metric is made of a counter."""
        counters = [each for each in self.metrics if SHOWN[each].making is Making.RATE]
        if not counters:
            return None
        clock, step = self.owner.of(_CLOCK), step_s(duration_s, interval_s)
        parts: list[Expression] = [
            _by_node(_LASTED, Lasted(clock, duration_s, step, at - duration_s)),
            _by_node(_OFTEN, Ranged(Over.SAMPLES, clock, duration_s)),
        ]
        for each in counters:
            series = self.owner.of(SHOWN[each].series)
            parts += [
                _by_node(f"{_RISEN}_{each.value}", Risen(series, duration_s)),
                _by_node(f"{_RATE}_{each.value}", Ranged(Over.RATE, series, duration_s)),
                _by_node(f"{_RESETS}_{each.value}", Ranged(Over.RESETS, series, duration_s)),
                _by_node(f"{_SAMPLES}_{each.value}", Ranged(Over.SAMPLES, series, duration_s)),
            ]
        return Either(tuple(parts))

    def means(self, answer: Iterable[SeriesPoints]) -> Means:
        """Of every node and counter of which there are two samples."""
        told: dict[str, dict[str, float]] = defaultdict(dict)
        for each in answer:
            if each.points and math.isfinite(each.points[-1][1]):
                told[each.labels.get("node", "")][each.labels.get(FIGURE, "")] = each.points[-1][1]
        found = {}
        for node, figures in told.items():
            for metric in self.metrics:
                mean = _mean(figures, metric.value)
                if mean is not None:
                    found[metric, node] = mean * SHOWN[metric].factor
        return found


def of_all(metric: Shown, means: Means) -> float | None:
    """The whole job's."""
    return summed(metric, (mean for (of, _), mean in means.items() if of is metric))


def _by_node(figure: str, what: Expression) -> Figured:
    return Figured(figure, Gathered(Gather.MOST, what, ("node",)))


def _mean(figures: Mapping[str, float], name: str) -> float | None:
    risen, lasted_s = figures.get(f"{_RISEN}_{name}"), figures.get(_LASTED, 0.0)
    whole = figures.get(f"{_SAMPLES}_{name}") == figures.get(_OFTEN)
    if risen is not None and lasted_s > 0 and whole and not figures.get(f"{_RESETS}_{name}"):
        return risen / lasted_s
    return figures.get(f"{_RATE}_{name}")
