"""Figures for one reader: the chosen metrics, the newest of each node. No I/O.

A snapshot is only stored when it arrives; figures are computed when they are sent. So a slow
reader, or many nodes at 1 s, cost no more than what is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lattice.domain.measured import (
    NOT_MEASURED,
    SHOWN,
    JobSnapshot,
    Shown,
    ShownValue,
    Summing,
    shown_of,
    summed,
)
from lattice.domain.metric import Absence
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.watch.model import NodeFigures, WatchFigure, WatchMeasured, moment


@dataclass(frozen=True, slots=True)
class _Part:
    """The contribution of one node to the summary of one metric."""

    total: float
    count: int
    worst: float
    example: WatchFigure


class WatchFigures:
    """The newest snapshot of each node, and which of them are new."""

    def __init__(self, metrics: tuple[Shown, ...], node_count: int) -> None:
        self.node_count = node_count
        self._metrics = tuple(dict.fromkeys(metrics))
        self._new: dict[str, NodeSnapshot] = {}
        self._parts: dict[str, dict[Shown, _Part]] = {}
        self._reasons: dict[Shown, WatchFigure] = {}

    @property
    def waiting(self) -> int:
        """Number of nodes with new snapshots."""
        return len(self._new)

    def take(self, snapshot: NodeSnapshot) -> None:
        self._new[snapshot.node] = snapshot

    def drop(self, node: str) -> None:
        """Forget a node: its values are not current."""
        self._new.pop(node, None)
        self._parts.pop(node, None)

    def drained(self) -> WatchMeasured | None:
        """Return all new measurements in one message."""
        if not self._new:
            return None
        snapshots, self._new = self._new, {}
        nodes = tuple(self._of_node(each) for each in snapshots.values())
        newest = max(snapshots.values(), key=lambda each: each.now.time)
        return WatchMeasured(
            time=moment(newest.now.time),
            resolution_s=newest.now.resolution_s,
            nodes=nodes,
            summary=tuple(map(self._summary, self._metrics)),
            measured=len(self._parts),
            node_count=max(self.node_count, len(self._parts)),
        )

    def _of_node(self, snapshot: NodeSnapshot) -> NodeFigures:
        parts = self._parts[snapshot.node] = {}
        figures = []
        for metric in self._metrics:
            figure, part = _figure(metric, snapshot.before, snapshot.now)
            figures.append(figure)
            if part is not None:
                parts[metric] = part
            else:
                self._reasons[metric] = figure
        return NodeFigures(
            node=snapshot.node, time=moment(snapshot.now.time), figures=tuple(figures)
        )

    def _summary(self, metric: Shown) -> WatchFigure:
        parts = [each[metric] for each in self._parts.values() if metric in each]
        if not parts:
            return self._reasons.get(metric) or WatchFigure(
                metric=metric, unit=SHOWN[metric].unit, reason=NOT_MEASURED
            )
        summing = SHOWN[metric].summing
        if summing is Summing.WORST:
            value = max(each.worst for each in parts)
        else:
            value = math.fsum(each.total for each in parts)
            if summing is Summing.MEAN:
                value /= sum(each.count for each in parts)
        example = parts[0].example
        return WatchFigure(
            metric=metric,
            value=value,
            unit=example.unit,
            source=example.source,
            scope=example.scope,
        )


def _figure(
    metric: Shown, before: JobSnapshot | None, now: JobSnapshot
) -> tuple[WatchFigure, _Part | None]:
    readings = shown_of(metric, before, now)
    measured = [each for each in readings if isinstance(each, ShownValue)]
    unit = SHOWN[metric].unit
    values = [each.value for each in measured]
    value = summed(metric, values)
    if value is None:
        absences = (each for each in readings if isinstance(each, Absence))
        absence = next(absences, Absence(SHOWN[metric].series, NOT_MEASURED))
        reason, last_error = absence.reason, absence.last_error
        return WatchFigure(metric=metric, unit=unit, reason=reason, last_error=last_error), None
    scopes = {label for each in measured for name, label in each.labels if name == "scope"}
    figure = WatchFigure(
        metric=metric,
        value=value,
        unit=unit,
        source=measured[0].source,
        scope="node" if "node" in scopes else "",
    )
    return figure, _Part(math.fsum(values), len(values), max(values), figure)
