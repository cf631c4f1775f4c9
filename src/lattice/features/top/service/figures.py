"""Parses the store's answer to a composed query. Pure.

NaN and infinity are no figures, such as a quantile without observations. They are kept separately
with the reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.domain.measured import NOTHING_DONE, SHOWN, Making, Shown, Summing
from lattice.domain.metric import PREFIX, Provenance
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.features.top.service.composing import COUNT, COVERAGE, MOMENT, OF, PEAK
from lattice.observe.metric_query import FIGURE

Place = tuple[str, str]
"""A node and a GPU; both empty for the whole job."""
ALL: Place = ("", "")
TOO_LONG = "longer than the longest time that is told apart"
_BY_SERIES = {PREFIX + showing.series: metric for metric, showing in SHOWN.items()}
_BY_WORD = {each.value: each for each in Shown}
_GAUGES = {each.value for each in Summing}


@dataclass(frozen=True, slots=True)
class Origin:
    """Who measured one metric, its scope, and its number of series."""

    source: Provenance
    scope: str
    series: int


@dataclass(slots=True)
class Figures:
    """The contents of one answer of the store."""

    values: dict[tuple[Shown, Place], float] = field(default_factory=dict)
    peaks: dict[tuple[Shown, Place], float] = field(default_factory=dict)
    none: dict[tuple[Shown, Place], str] = field(default_factory=dict)
    """Where the store computed no number, and why."""
    origins: dict[tuple[Shown, str], list[Origin]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By metric and node; the empty node stands for all."""
    of: dict[tuple[Shown, str], int] = field(default_factory=dict)
    moments: dict[str, float] = field(default_factory=dict)
    """When a node was last measured; the empty node stands for any."""
    coverage: int | None = None
    is_apart: bool = False
    """True if the source is known for each node."""
    history: dict[tuple[Shown, Place], tuple[Point, ...]] = field(default_factory=dict)

    foremost: dict[tuple[Shown, str], Origin | None] = field(default_factory=dict)
    """A cache for `origin`."""

    def origin(self, metric: Shown, node: str) -> Origin | None:
        """Return the node's origin if known, else that of all; the one with most series."""
        key = (metric, node if node and self.is_apart else "")
        if key not in self.foremost:
            found = self.origins.get(key) or self.origins.get((metric, ""))
            self.foremost[key] = max(found, key=lambda each: each.series) if found else None
        return self.foremost[key]

    def by_metric(self) -> dict[Shown, dict[Place, float]]:
        """Return the values of each metric."""
        found: dict[Shown, dict[Place, float]] = {}
        for (metric, place), value in self.values.items():
            found.setdefault(metric, {})[place] = value
        return found

    @property
    def is_mixed(self) -> bool:
        """True if a metric has different sources."""
        return any(len(each) > 1 for each in self.origins.values())

    def places(self) -> set[Place]:
        return {place for _, place in (*self.values, *self.none)}


def read_figures(answer: Iterable[SeriesPoints]) -> Figures:
    """Parse an instant answer."""
    found = Figures()
    for each in answer:
        if each.points:
            _take(found, each.labels, each.points[-1][1])
    return found


def read_history(answer: Iterable[SeriesPoints]) -> dict[tuple[Shown, Place], tuple[Point, ...]]:
    """Parse a range answer; gaps have no points."""
    found = {}
    for each in answer:
        metric = _metric(each.labels)
        if metric is not None:
            points = (point for point in each.points if math.isfinite(point[1]))
            found[metric, _place(each.labels)] = tuple(points)
    return found


def _take(found: Figures, labels: Mapping[str, str], value: float) -> None:
    metric = _metric(labels)
    if metric is not None:
        _take_value(found, metric, _place(labels), value)
        return
    figure, node = labels.get(FIGURE, ""), labels.get("node", "")
    if figure.startswith(PEAK) and math.isfinite(value):
        peak = _BY_WORD.get(figure.removeprefix(PEAK))
        if peak is not None:
            found.peaks[peak, _place(labels)] = value
    elif not math.isfinite(value):
        return
    elif figure.startswith(MOMENT):
        found.moments[node] = max(value, found.moments.get(node, 0.0))
    elif figure == COVERAGE:
        found.coverage = int(value)
    elif figure in {COUNT, OF}:
        _take_count(found, figure, labels, int(value))


def _take_value(found: Figures, metric: Shown, place: Place, value: float) -> None:
    if math.isfinite(value):
        found.values[metric, place] = value
    elif SHOWN[metric].making is Making.P99:
        found.none[metric, place] = NOTHING_DONE if math.isnan(value) else TOO_LONG


def _take_count(found: Figures, figure: str, labels: Mapping[str, str], count: int) -> None:
    metric = _by_name(labels)
    if metric is None:
        return
    node = labels.get("node", "")
    if figure == OF:
        found.of[metric, node] = count
        return
    try:
        source = Provenance(labels.get("source", ""))
    except ValueError:
        return
    found.origins[metric, node].append(Origin(source, labels.get("scope", ""), count))
    found.is_apart = found.is_apart or bool(node)


def _metric(labels: Mapping[str, str]) -> Shown | None:
    """Return the metric of a value; None if it is no value."""
    figure = labels.get(FIGURE, "")
    return _by_name(labels) if figure in _GAUGES else _BY_WORD.get(figure)


def _by_name(labels: Mapping[str, str]) -> Shown | None:
    return _BY_SERIES.get(labels.get("__name__", ""))


def _place(labels: Mapping[str, str]) -> Place:
    return labels.get("node", ""), labels.get("gpu_uuid", "")
