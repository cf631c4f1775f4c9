"""The last ten minutes of a job in one query to the metric store. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.features.diag.model import TRACE_S, TraceKey
from lattice.observe import windows
from lattice.observe.metric_query import FIGURE, Either, Figured, owner_filter
from lattice.observe.node_questions import started_s
from lattice.observe.shown_series import NODE, NODE_AND_GPU, shown_series

PER_CARD_NODES = 64
"""Above this many nodes a trace combines all GPUs of a node, to keep the answer small."""
_MOST_POINTS = 20
TRACED = (Shown.GPU_UTILIZATION, Shown.GPU_POWER_DRAW, Shown.CPU_UTILIZATION)


def step_s(interval_s: float) -> int:
    """Return the seconds between points of a trace."""
    return windows.step_s(TRACE_S, interval_s, _MOST_POINTS)


def question(job: JobAttempt, nodes: int, interval_s: float, now: float) -> Either:
    """Build the query. Raises `BadSelector`."""
    owner = owner_filter(job)
    window = windows.live_window(interval_s, now - started_s(job), step_s(interval_s))
    per_card = nodes <= PER_CARD_NODES
    return Either(
        tuple(
            Figured(
                each.value,
                shown_series(
                    owner, each, window, NODE_AND_GPU if per_card and SHOWN[each].per_gpu else NODE
                ),
            )
            for each in TRACED
        )
    )


def read(series: Iterable[SeriesPoints]) -> dict[TraceKey, tuple[Point, ...]]:
    """Return points by metric, node and GPU, without NaN and infinity."""
    found: dict[TraceKey, tuple[Point, ...]] = {}
    known = {each.value: each for each in TRACED}
    for each in series:
        metric = known.get(each.labels.get(FIGURE, ""))
        points = tuple(point for point in each.points if math.isfinite(point[1]))
        if metric is not None and points:
            key = (metric, each.labels.get("node", ""), each.labels.get("gpu_uuid", ""))
            found[key] = points
    return found
