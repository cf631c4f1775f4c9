"""Figures from the store's answer to a composed query, or from agents' snapshots. Pure.

NaN and infinity are no figures, such as a quantile without observations. They are kept separately
with the reason. Figures from agents are current only: a rate comes from a node's last two
snapshots, and there is no history.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.domain.measured import (
    NOTHING_DONE,
    SHOWN,
    Making,
    Shown,
    ShownValue,
    Summing,
    shown_of,
    summed,
)
from lattice.domain.metric import PREFIX, Absence, Labels, Provenance
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.top.model import TopMode, metrics_of
from lattice.features.top.service.composer import COUNT, COVERAGE, MOMENT, OF, PEAK
from lattice.observe.metric_query import FIGURE

Missing = dict[tuple[Shown, str], Absence]
RowKey = tuple[str, str]
"""A node and a GPU; both empty for the whole job."""
ALL: RowKey = ("", "")
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

    values: dict[tuple[Shown, RowKey], float] = field(default_factory=dict)
    peaks: dict[tuple[Shown, RowKey], float] = field(default_factory=dict)
    none: dict[tuple[Shown, RowKey], str] = field(default_factory=dict)
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
    history: dict[tuple[Shown, RowKey], tuple[Point, ...]] = field(default_factory=dict)

    foremost: dict[tuple[Shown, str], Origin | None] = field(default_factory=dict)
    """A cache for `origin`."""

    def origin(self, metric: Shown, node: str) -> Origin | None:
        """Return the node's origin if known, else that of all; the one with most series."""
        key = (metric, node if node and self.is_apart else "")
        if key not in self.foremost:
            found = self.origins.get(key) or self.origins.get((metric, ""))
            self.foremost[key] = max(found, key=lambda each: each.series) if found else None
        return self.foremost[key]

    def by_metric(self) -> dict[Shown, dict[RowKey, float]]:
        found: dict[Shown, dict[RowKey, float]] = {}
        for (metric, row_key), value in self.values.items():
            found.setdefault(metric, {})[row_key] = value
        return found

    @property
    def is_mixed(self) -> bool:
        """True if a metric has different sources."""
        return any(len(each) > 1 for each in self.origins.values())

    def row_keys(self) -> set[RowKey]:
        return {row_key for _, row_key in (*self.values, *self.none)}


def read_figures(answer: Iterable[SeriesPoints]) -> Figures:
    """Parse an instant answer."""
    found = Figures()
    for each in answer:
        if each.points:
            _take(found, each.labels, each.points[-1][1])
    return found


def read_history(answer: Iterable[SeriesPoints]) -> dict[tuple[Shown, RowKey], tuple[Point, ...]]:
    """Parse a range answer; gaps have no points."""
    found = {}
    for each in answer:
        metric = _metric(each.labels)
        if metric is not None:
            points = (point for point in each.points if math.isfinite(point[1]))
            found[metric, _row_key(each.labels)] = tuple(points)
    return found


def _take(found: Figures, labels: Mapping[str, str], value: float) -> None:
    metric = _metric(labels)
    if metric is not None:
        _take_value(found, metric, _row_key(labels), value)
        return
    figure, node = labels.get(FIGURE, ""), labels.get("node", "")
    if figure.startswith(PEAK) and math.isfinite(value):
        peak = _BY_WORD.get(figure.removeprefix(PEAK))
        if peak is not None:
            found.peaks[peak, _row_key(labels)] = value
    elif not math.isfinite(value):
        return
    elif figure.startswith(MOMENT):
        found.moments[node] = max(value, found.moments.get(node, 0.0))
    elif figure == COVERAGE:
        found.coverage = int(value)
    elif figure in {COUNT, OF}:
        _take_count(found, figure, labels, int(value))


def _take_value(found: Figures, metric: Shown, row_key: RowKey, value: float) -> None:
    if math.isfinite(value):
        found.values[metric, row_key] = value
    elif SHOWN[metric].making is Making.P99:
        found.none[metric, row_key] = NOTHING_DONE if math.isnan(value) else TOO_LONG


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


def _row_key(labels: Mapping[str, str]) -> RowKey:
    return labels.get("node", ""), labels.get("gpu_uuid", "")


def figures_of(mode: TopMode, snapshots: Iterable[NodeSnapshot]) -> tuple[Figures, Missing]:
    """Return the figures of a mode's rows from snapshots, and why nodes lack others."""
    found, missing = Figures(), Missing()
    parts: dict[tuple[Shown, RowKey], list[ShownValue]] = {}
    for snapshot in snapshots:
        found.moments[snapshot.node] = snapshot.now.time
        for metric in metrics_of(mode):
            values = _agent_values(metric, snapshot, missing)
            for each in values:
                parts.setdefault(
                    (metric, _agent_row_key(mode, snapshot.node, each.labels)), []
                ).append(each)
    for (metric, row_key), values in parts.items():
        total = summed(metric, (each.value for each in values))
        if total is not None:
            found.values[metric, row_key] = total
            if not row_key[1]:
                found.of[metric, row_key[0]] = len(values)
        _count_origins(found, metric, row_key[0], values)
    if mode is not TopMode.SUMMARY:
        for metric in metrics_of(mode):
            every = [v for (of, _), each in parts.items() if of is metric for v in each]
            _count_origins(found, metric, "", every)
    return found, missing


def _agent_values(metric: Shown, snapshot: NodeSnapshot, missing: Missing) -> Sequence[ShownValue]:
    values = []
    for each in shown_of(metric, snapshot.before, snapshot.now):
        if isinstance(each, ShownValue):
            values.append(each)
        else:
            missing[metric, snapshot.node] = each
    return values


def _agent_row_key(mode: TopMode, node: str, labels: Labels) -> RowKey:
    if mode is TopMode.SUMMARY:
        return "", ""
    return node, dict(labels).get("gpu_uuid", "") if mode is TopMode.PER_GPU else ""


def _count_origins(found: Figures, metric: Shown, node: str, values: Iterable[ShownValue]) -> None:
    counted = Counter((each.source, dict(each.labels).get("scope", "")) for each in values)
    origins = [Origin(source, scope, count) for (source, scope), count in counted.items()]
    if origins:
        found.origins[metric, node] = origins
        found.is_apart = found.is_apart or bool(node)
