"""A GPU that is almost idle for longer than a minute. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    Lasting,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.conditions import is_gpu_idle, is_gpu_low
from lattice.observe.thresholds import Thresholds

_CLEAR = 1.2
"""It clears a little above the bound."""


class GpuIdleAlert:
    """Fires once utilisation was below the bound for longer than allowed."""

    rule = AlertRule.GPU_IDLE

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._low = Lasting()

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        cards = glance.by_gpu("gpu_utilization_percent")
        self._low.keep_only(cards)
        for uuid, sample in cards.items():
            if is_gpu_low(sample.value, self._thresholds):
                since, _ = self._low.holds(uuid, glance)
                idle = is_gpu_idle(sample.value, glance.time - since, self._thresholds)
                yield self._finding(
                    uuid, sample.value, AlertLevel.BAD if idle else AlertLevel.BETWEEN, since
                )
                continue
            self._low.ends(uuid)
            clear = sample.value >= self._thresholds.gpu_idle_percent * _CLEAR
            yield self._finding(
                uuid, sample.value, AlertLevel.GOOD if clear else AlertLevel.BETWEEN, None
            )

    def _finding(
        self, uuid: str, value: float, level: AlertLevel, since: float | None
    ) -> AlertFinding:
        name, bound = gpu_name(uuid), self._thresholds.gpu_idle_percent
        words = (
            f"{name} is used {value:.0f} %; it was below {bound:g} % for over "
            f"{self._thresholds.gpu_idle_s:.0f} s."
            if level is AlertLevel.BAD
            else f"{name} is used {value:.0f} %."
        )
        return AlertFinding(
            subject=uuid,
            level=level,
            value=value,
            bound=bound,
            unit="%",
            since=since,
            words=words,
            remedy="See whether the job waits for input, or for another rank; ask for fewer GPUs "
            "if it needs none.",
        )
