"""The last ten minutes of a job in one question to the metric store. Pure.

Every selector has the run's scope in it (`lattice.domain.promql`); nothing a caller sends is part
of the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.domain.promql import scope_of, selector
from lattice.features.diag.model import TraceKey

FIGURE = "figure"
LEAST_STEP_S = 30
PER_CARD_NODES = 64
"""On more nodes a trace is of the mean of a node's cards: the answer stays small."""
_FRESH, _RATED = 2.5, 4.0
TRACED = (Shown.GPU_UTILIZATION, Shown.GPU_POWER_DRAW, Shown.CPU_UTILIZATION)


def step_s(interval_s: float) -> int:
    return max(LEAST_STEP_S, math.ceil(interval_s))


def question(job: JobAttempt, nodes: int, interval_s: float) -> str:
    """Raises `BadSelector`."""
    scope = scope_of(job)
    fresh_s = max(step_s(interval_s), math.ceil(_FRESH * interval_s))
    rated_s = max(2 * step_s(interval_s), math.ceil(_RATED * interval_s))
    parts = []
    for metric in TRACED:
        showing = SHOWN[metric]
        series = selector(showing.series, scope)
        if showing.per_gpu:
            once = f"max by (node, gpu_uuid) (last_over_time({series}[{fresh_s}s]))"
            each = once if nodes <= PER_CARD_NODES else f"avg by (node) ({once})"
        else:
            each = f"sum by (node) (rate({series}[{rated_s}s])) * {showing.factor:g}"
        parts.append(f'label_replace({each}, "{FIGURE}", "{metric.value}", "", "")')
    return "\nor ".join(parts)


def read(series: Iterable[SeriesPoints]) -> dict[TraceKey, tuple[Point, ...]]:
    """By metric, node and card; what is no number is no point."""
    found: dict[TraceKey, tuple[Point, ...]] = {}
    known = {each.value: each for each in TRACED}
    for each in series:
        metric = known.get(each.labels.get(FIGURE, ""))
        points = tuple(point for point in each.points if math.isfinite(point[1]))
        if metric is not None and points:
            key = (metric, each.labels.get("node", ""), each.labels.get("gpu_uuid", ""))
            found[key] = points
    return found
