"""Builds one query for all figures of a look. Pure.

Each part has the name of a figure as a label, because `or` does not distinguish metrics. A gauge
counts while it is fresh. A rate looks further back, so a lost node would stay in a total for a
while. If nodes are missing, the window is `fresh_only`: then only fresh series have rates, which
doubles the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.measured import SHOWN, Making, Shown, Summing
from lattice.features.top.model import TopMode, metrics_of
from lattice.observe.metric_query import (
    Again,
    Either,
    Expression,
    Figured,
    Gather,
    Gathered,
    Moments,
    Over,
    OwnerFilter,
    Ranged,
)
from lattice.observe.shown_series import (
    HEARTBEATS,
    NODE,
    NODE_AND_GPU,
    gauges_by_name,
    shown_series,
)
from lattice.observe.windows import Window, live_window, past_window, step_s

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
    """Return the composer for the rows of a mode."""
    by: dict[TopMode, tuple[str, ...]] = {
        TopMode.SUMMARY: (),
        TopMode.PER_NODE: NODE,
        TopMode.WIDE: NODE,
        TopMode.PER_GPU: NODE_AND_GPU,
    }
    return Composer(owner, metrics_of(mode), by[mode])
