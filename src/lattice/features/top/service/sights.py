"""Figures from agents' snapshots, for when the metric store does not answer. Pure.

They are current only: a rate comes from a node's last two snapshots, and there is no history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lattice.domain.measured import Shown, ShownValue, shown_of, summed
from lattice.domain.metric import Absence, Labels
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.top.model import TopMode, metrics_of
from lattice.features.top.service.figures import Figures, Origin, Place

Missing = dict[tuple[Shown, str], Absence]


def figures_of(mode: TopMode, sights: Iterable[NodeSnapshot]) -> tuple[Figures, Missing]:
    """Return the figures of a mode's rows, and why nodes lack others."""
    found, missing = Figures(), Missing()
    parts: dict[tuple[Shown, Place], list[ShownValue]] = {}
    for sight in sights:
        found.moments[sight.node] = sight.now.time
        for metric in metrics_of(mode):
            values = _values(metric, sight, missing)
            for each in values:
                parts.setdefault((metric, _place(mode, sight.node, each.labels)), []).append(each)
    for (metric, place), values in parts.items():
        total = summed(metric, (each.value for each in values))
        if total is not None:
            found.values[metric, place] = total
            if not place[1]:
                found.of[metric, place[0]] = len(values)
        _count(found, metric, place[0], values)
    if mode is not TopMode.SUMMARY:
        for metric in metrics_of(mode):
            every = [v for (of, _), each in parts.items() if of is metric for v in each]
            _count(found, metric, "", every)
    return found, missing


def _values(metric: Shown, sight: NodeSnapshot, missing: Missing) -> Sequence[ShownValue]:
    values = []
    for each in shown_of(metric, sight.before, sight.now):
        if isinstance(each, ShownValue):
            values.append(each)
        else:
            missing[metric, sight.node] = each
    return values


def _place(mode: TopMode, node: str, labels: Labels) -> Place:
    if mode is TopMode.SUMMARY:
        return "", ""
    return node, dict(labels).get("gpu_uuid", "") if mode is TopMode.PER_GPU else ""


def _count(found: Figures, metric: Shown, node: str, values: Iterable[ShownValue]) -> None:
    counted = Counter((each.source, dict(each.labels).get("scope", "")) for each in values)
    origins = [Origin(source, scope, count) for (source, scope), count in counted.items()]
    if origins:
        found.origins[metric, node] = origins
        found.is_apart = found.is_apart or bool(node)
