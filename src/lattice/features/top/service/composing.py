"""Which query answers a look: one for all its figures. Pure.

Each part has a figure's name as a label, because `or` does not tell values apart by their metric.
A gauge counts while it is fresh. A rate looks further back, so a node that is gone would stay in a
total for a while: where nodes are known to be missing, the query is `strict` and only takes rates
of fresh series, which costs as much again. Series of one node and GPU are one, whoever measured
them: for a while after the source of a metric has changed there are two of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lattice.domain.measured import SHOWN, Making, Shown, Summing
from lattice.features.top.model import HISTORY_POINTS, TopMode, metrics_of
from lattice.features.top.service.promql import (
    Again,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Moments,
    Over,
    OwnerFilter,
    Quantile,
    Ranged,
    While,
)

COUNT, MOMENT, COVERAGE, OF = "count", "moment", "coverage", "of"
PEAK = "peak_"
SUMMINGS = {
    Summing.MEAN: Gather.MEAN,
    Summing.TOTAL: Gather.SUM,
    Summing.WORST: Gather.MOST,
}
_SIGNS_OF_LIFE = ("cpu_seconds_total", "gpu_utilization_percent")
_ONE = ("node", "gpu_uuid")
_DELIVERY_S = 5.0
"""How long a sample may take from its node to the store."""
_FRESH, _RATE = 2.5, 4
"""In intervals: for how long a value is current, and what a rate is made of."""
_PEAK_STEPS = 240


@dataclass(frozen=True, slots=True)
class Spans:
    """Lengths of time that fit what an allocation is measured at, in whole seconds."""

    fresh_s: int
    rate_s: int
    step_s: int

    @classmethod
    def of(cls, interval_s: float, longest_s: float = math.inf, least_s: int = 0) -> Spans:
        """`least_s` is how far apart looks are, where they are far apart."""
        fresh_s = max(math.ceil(interval_s * _FRESH + _DELIVERY_S), least_s)
        rate_s = max(math.ceil(interval_s * _RATE + _DELIVERY_S), least_s)
        step_s = max(math.ceil(interval_s), least_s, 1)
        if longest_s < rate_s:
            # A job that has just begun must not be measured against what was before it.
            rate_s = max(math.ceil(longest_s), fresh_s)
        return cls(fresh_s, rate_s, step_s)


def peak_step_s(duration_s: int, interval_s: float) -> int:
    """How far apart values are looked at for the highest of them."""
    return max(math.ceil(interval_s), math.ceil(duration_s / _PEAK_STEPS))


def history_step_s(span_s: float, interval_s: float) -> int:
    """How far apart the points of a history are."""
    return max(math.ceil(interval_s), math.ceil(span_s / HISTORY_POINTS), 1)


@dataclass(frozen=True, slots=True)
class Composer:
    """The queries about one attempt, for one mode's rows."""

    owner: OwnerFilter
    metrics: tuple[Shown, ...]
    by: tuple[str, ...] = ()

    def now(self, spans: Spans, *, strict: bool = False) -> Either:
        """Everything that a look at the newest values needs."""
        return Either((*self._values(spans, strict=strict), *self._origin(spans.fresh_s)))

    def history(self, spans: Spans) -> Either:
        """The values alone, for looks at many moments."""
        return Either(self._values(spans))

    def over(self, duration_s: int, step_s: int, spans: Spans) -> Either:
        """Peaks, and the means of all but the counters."""
        parts: list[Expression] = []
        for each in self.metrics:
            if SHOWN[each].making is not Making.RATE:
                parts.append(Figured(each.value, self._mean(each, duration_s)))
            peak = Again(Over.MOST, self._value(each, spans), duration_s, step_s)
            parts.append(Figured(PEAK + each.value, peak))
        return Either((*parts, *self._origin(duration_s)))

    def origins(self, fresh_s: int) -> Figured:
        """Who measured what on which node: asked where not all are alike."""
        return Figured(COUNT, self._count(fresh_s, ("node",)))

    def alive(self) -> Either:
        """When each node was last measured, of those that were."""
        return Either(self._moments(("node",), _SIGNS_OF_LIFE))

    def _values(self, spans: Spans, *, strict: bool = False) -> tuple[Expression, ...]:
        parts: list[Expression] = []
        for summing, gather in SUMMINGS.items():
            names = [
                SHOWN[each].series
                for each in self.metrics
                if SHOWN[each].making is Making.LAST and SHOWN[each].summing is summing
            ]
            if names:
                fresh = Ranged(Over.LAST, self.owner.of(*names), spans.fresh_s)
                once = Gathered(Gather.MOST, fresh, ("__name__", *_ONE))
                parts.append(Figured(summing.value, Gathered(gather, once, ("__name__", *self.by))))
        parts += [
            Figured(each.value, self._value(each, spans, strict=strict))
            for each in self.metrics
            if SHOWN[each].making is not Making.LAST
        ]
        return tuple(parts)

    def _value(self, metric: Shown, spans: Spans, *, strict: bool = False) -> Expression:
        """One figure of the newest values."""
        showing = SHOWN[metric]
        series = self.owner.of(showing.series)
        fresh = Ranged(Over.LAST, series, spans.fresh_s)
        if showing.making is Making.LAST:
            return self._gathered(metric, fresh)
        grown = Ranged(Over.RATE, series, spans.rate_s)
        return self._grown(metric, While(grown, fresh) if strict else grown)

    def _mean(self, metric: Shown, duration_s: int) -> Expression:
        showing = SHOWN[metric]
        series = self.owner.of(showing.series)
        if showing.making is Making.LAST:
            return self._gathered(metric, Ranged(Over.MEAN, series, duration_s))
        return self._grown(metric, Ranged(Over.RATE, series, duration_s))

    def _grown(self, metric: Shown, grown: Expression) -> Expression:
        if SHOWN[metric].making is not Making.P99:
            return self._gathered(metric, grown)
        buckets = Gathered(Gather.SUM, grown, ("le", "node"))
        return Gathered(Gather.MOST, Quantile(0.99, buckets), self.by)

    def _gathered(self, metric: Shown, what: Expression) -> Expression:
        once = Gathered(Gather.MOST, what, _ONE)
        return Gathered(SUMMINGS[SHOWN[metric].summing], once, self.by)

    def _origin(self, fresh_s: int) -> tuple[Expression, ...]:
        return (
            Figured(COUNT, self._count(fresh_s)),
            *self._moments(("node",) if self.by else (), _SIGNS_OF_LIFE[:1]),
            *self._crowd(fresh_s),
        )

    def _moments(self, by: tuple[str, ...], signs: tuple[str, ...]) -> tuple[Expression, ...]:
        return tuple(
            Figured(f"{MOMENT}{number}", Gathered(Gather.MOST, Moments(self.owner.of(each)), by))
            for number, each in enumerate(signs)
        )

    def _crowd(self, fresh_s: int) -> tuple[Expression, ...]:
        """Of how many nodes something is known; by node, of how many GPUs a mean is."""
        if not self.by:
            alive = Ranged(Over.LAST, self.owner.of(*_SIGNS_OF_LIFE), fresh_s)
            nodes = Gathered(Gather.COUNT, alive, ("node",))
            return (Figured(COVERAGE, Gathered(Gather.COUNT, nodes)),)
        means = [SHOWN[each].series for each in self.metrics if SHOWN[each].summing is Summing.MEAN]
        alive = Ranged(Over.LAST, self.owner.of(*means), fresh_s)
        once = Gathered(Gather.MOST, alive, ("__name__", *_ONE))
        return (Figured(OF, Gathered(Gather.COUNT, once, ("__name__", "node"))),)

    def _count(self, fresh_s: int, by: tuple[str, ...] = ()) -> Expression:
        measured = self.owner.of(*(SHOWN[each].series for each in self.metrics), counted=True)
        alive = Ranged(Over.LAST, measured, fresh_s)
        return Gathered(Gather.COUNT, alive, ("__name__", "source", "scope", *by))


def composer(owner: OwnerFilter, mode: TopMode) -> Composer:
    """For the rows of a mode."""
    by: dict[TopMode, tuple[str, ...]] = {
        TopMode.SUMMARY: (),
        TopMode.PER_NODE: ("node",),
        TopMode.WIDE: ("node",),
        TopMode.PER_GPU: _ONE,
    }
    return Composer(owner, metrics_of(mode), by[mode])
