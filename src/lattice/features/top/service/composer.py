"""Builds the queries for the figures of an answer. Pure.

Each part has the name of a figure as a label, because `or` does not distinguish metrics. A gauge
counts while it is fresh. A rate looks further back, so a lost node would stay in a total for a
while. If nodes are missing, the window is `fresh_only`: then only fresh series have rates, which
doubles the cost.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.measured import SHOWN, Making, Shown, Summing, summed
from lattice.domain.metricstore import SeriesPoints
from lattice.features.top.model import TopMode, metrics_of
from lattice.observe.metric_query import (
    FIGURE,
    Again,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Lasted,
    Moments,
    Over,
    OwnerFilter,
    Ranged,
    Risen,
)
from lattice.observe.shown_series import (
    HEARTBEATS,
    NODE,
    NODE_AND_GPU,
    gauges_by_name,
    shown_series,
)
from lattice.observe.windows import Window, live_window, past_window, step_s

_CLOCK = HEARTBEATS[0]
"""Measured whenever anything is."""
_LASTED, _OFTEN = "lasted", "often"
_RISEN, _RATE, _RESETS, _SAMPLES = "risen", "rate", "resets", "samples"
_STEPS, _LOOKS_A_SAMPLE = 240, 2
Means = Mapping[tuple[Shown, str], float]
"""By metric and node, in the displayed unit."""
COUNT, MOMENT, COVERAGE, OF = "count", "moment", "coverage", "of"
PEAK = "peak_"
_PEAK_STEPS = 240


@dataclass(frozen=True, slots=True)
class Composer:
    """Builds queries about one attempt, for the rows of one mode."""

    owner: OwnerFilter
    metrics: tuple[Shown, ...]
    by: tuple[str, ...] = ()

    def now(self, window: Window) -> Either:
        """Return the query for the newest values."""
        return Either((*self._values(window), *self._origin(window.gauge_s)))

    def history(self, window: Window) -> Either:
        """Return the query for values alone, for a range of times."""
        return Either(self._values(window))

    def over(self, duration_s: int, interval_s: float, lasted_s: float) -> Either:
        """Return the query for peaks, and for the means of all but counters."""
        step = step_s(duration_s, interval_s, _PEAK_STEPS)
        whole = past_window(duration_s, interval_s)
        stepped = live_window(interval_s, lasted_s, step)
        parts: list[Expression] = []
        for each in self.metrics:
            if SHOWN[each].making is not Making.RATE:
                parts.append(Figured(each.value, shown_series(self.owner, each, whole, self.by)))
            value = shown_series(self.owner, each, stepped, self.by)
            parts.append(Figured(PEAK + each.value, Again(Over.MOST, value, duration_s, step)))
        return Either((*parts, *self._origin(duration_s)))

    def origins(self, fresh_s: int) -> Figured:
        """Return the query for who measured what on which node, used if sources differ."""
        return Figured(COUNT, self._count(fresh_s, NODE))

    def alive(self) -> Either:
        """Return the query for each node's last sample time."""
        return Either(self._moments(NODE, HEARTBEATS))

    def _values(self, window: Window) -> tuple[Expression, ...]:
        parts: list[Expression] = []
        for summing in Summing:
            gauges = [
                each
                for each in self.metrics
                if SHOWN[each].making is Making.LAST and SHOWN[each].summing is summing
            ]
            if gauges:
                values = gauges_by_name(self.owner, gauges, window, self.by)
                parts.append(Figured(summing.value, values))
        parts += [
            Figured(each.value, shown_series(self.owner, each, window, self.by))
            for each in self.metrics
            if SHOWN[each].making is not Making.LAST
        ]
        return tuple(parts)

    def _origin(self, fresh_s: int) -> tuple[Expression, ...]:
        return (
            Figured(COUNT, self._count(fresh_s)),
            *self._moments(NODE if self.by else (), HEARTBEATS[:1]),
            *self._crowd(fresh_s),
        )

    def _moments(self, by: tuple[str, ...], signs: tuple[str, ...]) -> tuple[Expression, ...]:
        return tuple(
            Figured(f"{MOMENT}{number}", Gathered(Gather.MOST, Moments(self.owner.of(each)), by))
            for number, each in enumerate(signs)
        )

    def _crowd(self, fresh_s: int) -> tuple[Expression, ...]:
        """Count the known nodes; by node, count the GPUs of a mean."""
        if not self.by:
            alive = Ranged(Over.LAST, self.owner.of(*HEARTBEATS), fresh_s)
            nodes = Gathered(Gather.COUNT, alive, NODE)
            return (Figured(COVERAGE, Gathered(Gather.COUNT, nodes)),)
        means = [SHOWN[each].series for each in self.metrics if SHOWN[each].summing is Summing.MEAN]
        alive = Ranged(Over.LAST, self.owner.of(*means), fresh_s)
        once = Gathered(Gather.MOST, alive, ("__name__", *NODE_AND_GPU))
        return (Figured(OF, Gathered(Gather.COUNT, once, ("__name__", "node"))),)

    def _count(self, fresh_s: int, by: tuple[str, ...] = ()) -> Expression:
        measured = self.owner.of(*(SHOWN[each].series for each in self.metrics), counted=True)
        alive = Ranged(Over.LAST, measured, fresh_s)
        return Gathered(Gather.COUNT, alive, ("__name__", "source", "scope", *by))


def composer(owner: OwnerFilter, mode: TopMode) -> Composer:
    by: dict[TopMode, tuple[str, ...]] = {
        TopMode.SUMMARY: (),
        TopMode.PER_NODE: NODE,
        TopMode.WIDE: NODE,
        TopMode.PER_GPU: NODE_AND_GPU,
    }
    return Composer(owner, metrics_of(mode), by[mode])


@dataclass(frozen=True, slots=True)
class Climbs:
    """Means of counters over a time range, from their exact increase.

    Stores extrapolate a rate over a long range to its edges, each in its own way. The result is too
    low if samples begin late. The increase of a counter is exact, and so are the times of a node's
    first and last sample. Those times are queried once per node, because the subquery is expensive.
    A node measures everything at one time. A counter that was reset, or lacks samples, uses its
    rate instead.
    """

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
        by_node: dict[str, dict[str, float]] = defaultdict(dict)
        for each in answer:
            if each.points and math.isfinite(each.points[-1][1]):
                by_node[each.labels.get("node", "")][each.labels.get(FIGURE, "")] = each.points[-1][
                    1
                ]
        found = {}
        for node, figures in by_node.items():
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
