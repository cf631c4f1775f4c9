"""A GPU that does next to nothing for longer than a minute. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Rule
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Lasting, Level, gpu_name

_CLEAR = 1.2
"""It works again from a little above the bound on."""


class GpuIdle:
    """Fires once the utilisation was below the bound for longer than allowed."""

    rule = Rule.GPU_IDLE

    def __init__(self, bounds: Bounds) -> None:
        self._bound = bounds.gpu_idle_percent
        self._for_s = bounds.gpu_idle_s
        self._low = Lasting()

    def look(self, glance: Glance) -> Iterator[Finding]:
        cards = glance.by_gpu("gpu_utilization_percent")
        self._low.keep_only(cards)
        for uuid, sample in cards.items():
            if sample.value < self._bound:
                since, _ = self._low.holds(uuid, glance)
                level = Level.BAD if glance.time - since > self._for_s else Level.BETWEEN
                yield self._finding(uuid, sample.value, level, since)
                continue
            self._low.ends(uuid)
            clear = sample.value >= self._bound * _CLEAR
            yield self._finding(uuid, sample.value, Level.GOOD if clear else Level.BETWEEN, None)

    def _finding(self, uuid: str, value: float, level: Level, since: float | None) -> Finding:
        name = gpu_name(uuid)
        words = (
            f"{name} is used {value:.0f} %; it was below {self._bound:g} % for over "
            f"{self._for_s:.0f} s."
            if level is Level.BAD
            else f"{name} is used {value:.0f} %."
        )
        return Finding(
            subject=uuid,
            level=level,
            value=value,
            bound=self._bound,
            unit="%",
            since=since,
            words=words,
            remedy="See whether the job waits for input, or for another rank; ask for fewer GPUs "
            "if it needs none.",
        )
