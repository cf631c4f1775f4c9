"""Looks for the live screen to show: a job on three nodes with two GPUs each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lattice.domain.allocation import State
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.metric import Provenance
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.top.model import (
    RowKind,
    TopAnswer,
    TopCell,
    TopMode,
    TopPoint,
    TopRow,
    columns_of,
)

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)
GIB = 2.0**30
VALUES = {
    Shown.GPU_UTILIZATION: 83.0,
    Shown.GPU_MEMORY_USED: 40 * GIB,
    Shown.GPU_POWER_DRAW: 305.0,
    Shown.CPU_UTILIZATION: 350.0,
    Shown.MEMORY_USED: 12.5 * GIB,
    Shown.NETWORK_TX_BYTES: 1.2e6,
    Shown.NETWORK_RX_BYTES: 900.0,
    Shown.IO_READ_BYTES: 5.2e7,
    Shown.IO_WRITE_BYTES: 0.0,
    Shown.GPU_TEMPERATURE: 61.0,
}
"""Nobody measures the others."""


def cell(metric: Shown, value: float | None, *, past: Sequence[float] = (), of: int = 1) -> TopCell:
    if value is None:
        return TopCell(metric=metric, reason="it was not measured")
    begun = NOW.timestamp() - 30.0 * len(past) - 4
    return TopCell(
        metric=metric,
        value=value,
        source=Provenance.HOST_LOCAL_PROBE,
        of=of,
        history=tuple(
            TopPoint(time=begun + 30.0 * number, value=each) for number, each in enumerate(past)
        ),
    )


def row(
    mode: TopMode,
    node: str = "",
    gpu: str = "",
    *,
    times: float = 1.0,
    age_s: float | None = 4.0,
    reason: str = "",
    past: bool = False,
) -> TopRow:
    kind = RowKind.GPU if gpu else RowKind.NODE if node else RowKind.SUMMARY
    made = []
    for column in columns_of(mode):
        value = VALUES.get(column.metric)
        value = None if value is None or reason else value * times
        # A share of its time is no more for six GPUs than for one.
        if value is not None and SHOWN[column.metric].unit == "%" and column.per_gpu:
            value = min(value, 100.0)
        earlier = [value * step / 10 for step in range(1, 11)] if past and value else []
        told = cell(column.metric, value, past=earlier, of=1 if node else 3)
        made.append(replace(told, reason=reason) if reason else told)
    return TopRow(kind=kind, node=node, gpu_uuid=gpu, age_s=age_s, reason=reason, cells=tuple(made))


def answer(
    mode: TopMode = TopMode.SUMMARY,
    rows: Sequence[TopRow] | None = None,
    *,
    past: bool = False,
    ended: datetime | None = None,
    taken: datetime = NOW,
) -> TopAnswer:
    nodes = ("n1", "n2", "n10")
    if rows is None and mode is TopMode.PER_GPU:
        rows = [row(mode, node, f"GPU-{node}-{number}", past=past) for node in nodes
                for number in (0, 1)]  # fmt: skip
    elif rows is None:
        rows = [] if mode is TopMode.SUMMARY else [row(mode, each, past=past) for each in nodes]
    return TopAnswer(
        allocation="42@1794700000",
        id="42",
        name="train",
        attempt=1,
        attempts=1,
        state=State.COMPLETED if ended else State.RUNNING,
        nodes="n[1-2,10]",
        node_count=3,
        started=NOW - timedelta(hours=1),
        ended=ended,
        taken=taken,
        mode=mode,
        origin=MetricOrigin(
            source=Provenance.HOST_LOCAL_PROBE,
            age_s=4.0,
            resolution_s=30.0,
            coverage=Coverage(3, 3),
            via="store",
        ),
        columns=columns_of(mode),
        rows=(row(mode, times=3.0, past=past), *rows),
    )


def later(given: TopAnswer, seconds: float) -> TopAnswer:
    return replace(given, taken=given.taken + timedelta(seconds=seconds))
