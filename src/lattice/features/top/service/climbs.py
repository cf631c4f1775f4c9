"""Means of counters over a time range, from their exact increase. Pure.

Stores extrapolate a rate over a long range to its edges, each in its own way. The result is too low
if samples begin late. The increase of a counter is exact, and so are the times of a node's first
and last sample. Those times are queried once per node, because the subquery is expensive. A node
measures everything at one time. A counter that was reset, or lacks samples, uses its rate instead.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.measured import SHOWN, Making, Shown, summed
from lattice.domain.metricstore import SeriesPoints
from lattice.observe.metric_query import (
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
from lattice.observe.shown_series import HEARTBEATS, NODE
from lattice.observe.windows import step_s

_CLOCK = HEARTBEATS[0]
"""Measured whenever anything is."""
_LASTED, _OFTEN = "lasted", "often"
_RISEN, _RATE, _RESETS, _SAMPLES = "risen", "rate", "resets", "samples"
_STEPS, _LOOKS_A_SAMPLE = 240, 2

Means = Mapping[tuple[Shown, str], float]
"""By metric and node, in the displayed unit."""


@dataclass(frozen=True, slots=True)
class Climbs:
    """The query for an owner's counters, and the meaning of its answer."""

    owner: OwnerFilter
    metrics: Sequence[Shown]

    def query(self, at: float, duration_s: int, interval_s: float) -> Either | None:
        """Build the query up to `at`, by node; None if no metric comes from a counter."""
        counters = [each for each in self.metrics if SHOWN[each].making is Making.RATE]
        if not counters:
            return None
        clock = self.owner.of(_CLOCK)
        step = step_s(duration_s, interval_s / _LOOKS_A_SAMPLE, _STEPS)
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
        """Return the mean of every node and counter with two samples."""
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
    """Return the value of the whole job."""
    return summed(metric, (mean for (of, _), mean in means.items() if of is metric))


def _by_node(figure: str, what: Expression) -> Figured:
    return Figured(figure, Gathered(Gather.MOST, what, NODE))


def _mean(figures: Mapping[str, float], name: str) -> float | None:
    risen, lasted_s = figures.get(f"{_RISEN}_{name}"), figures.get(_LASTED, 0.0)
    whole = figures.get(f"{_SAMPLES}_{name}") == figures.get(_OFTEN)
    if risen is not None and lasted_s > 0 and whole and not figures.get(f"{_RESETS}_{name}"):
        return risen / lasted_s
    return figures.get(f"{_RATE}_{name}")
