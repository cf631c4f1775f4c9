"""A GPU whose memory is all but full: the next tensor may be the last. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Level, gpu_name

_CLEAR = 2.0
"""It has passed at so many percent below the bound."""


class GpuMemory:
    """Fires at once."""

    rule = Rule.GPU_MEMORY

    def __init__(self, bounds: Bounds) -> None:
        self._bound = bounds.gpu_memory_percent

    def look(self, glance: Glance) -> Iterator[Finding]:
        total = glance.by_gpu("gpu_memory_total_bytes")
        for uuid, used in glance.by_gpu("gpu_memory_used_bytes").items():
            if uuid not in total or total[uuid].value <= 0:
                continue
            share = used.value / total[uuid].value * 100
            level = Level.BAD if share > self._bound else Level.BETWEEN
            if share <= self._bound - _CLEAR:
                level = Level.GOOD
            yield Finding(
                subject=uuid,
                level=level,
                value=share,
                bound=self._bound,
                unit="%",
                words=f"{gpu_name(uuid)} has {share:.1f} % of its memory in use; "
                f"the bound is {self._bound:g} %.",
                remedy="A smaller batch, or activation checkpointing, leaves room before it fails.",
            )
