"""A GPU with almost full memory: the next allocation may fail. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.thresholds import Thresholds

_CLEAR = 2.0
"""It clears this many percentage points below the bound."""


class GpuMemory:
    """Fires at once."""

    rule = AlertRule.GPU_MEMORY

    def __init__(self, thresholds: Thresholds) -> None:
        self._bound = thresholds.gpu_memory_percent

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        total = glance.by_gpu("gpu_memory_total_bytes")
        for uuid, used in glance.by_gpu("gpu_memory_used_bytes").items():
            if uuid not in total or total[uuid].value <= 0:
                continue
            share = used.value / total[uuid].value * 100
            level = AlertLevel.BAD if share > self._bound else AlertLevel.BETWEEN
            if share <= self._bound - _CLEAR:
                level = AlertLevel.GOOD
            yield AlertFinding(
                subject=uuid,
                level=level,
                value=share,
                bound=self._bound,
                unit="%",
                words=f"{gpu_name(uuid)} has {share:.1f} % of its memory in use; "
                f"the bound is {self._bound:g} %.",
                remedy="A smaller batch, or activation checkpointing, leaves room before it fails.",
            )
