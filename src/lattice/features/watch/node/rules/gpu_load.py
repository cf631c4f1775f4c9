"""Rules about the use of a GPU: idle, hung, and almost full memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.domain.metric import Sample
from lattice.features.watch.node.rules.rule import (
    AlertFinding,
    AlertLevel,
    Lasting,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.conditions import (
    hang_limit,
    is_gpu_hung,
    is_gpu_idle,
    is_gpu_low,
    is_gpu_spinning,
    last_progress,
    seems_busy,
)
from lattice.observe.thresholds import Thresholds

_MEMORY_CLEAR = 2.0
"""Memory clears this many percentage points below the bound."""
_HANG_CLEAR = 1.1
_IDLE_CLEAR = 1.2
"""An idle GPU clears a little above the bound."""


class GpuHangAlert:
    """A GPU that seems fully used at idle power, in a job without progress.

    Idle power is below a share of the GPU's limit, and of the most it drew in this job. A rank that
    waits in a collective for a missing rank looks like that: its kernel spins. The host spins too,
    so processor time is no sign of progress here. Output, storage and the job's own network are.
    """

    rule = AlertRule.GPU_HANG

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._stuck = Lasting()
        self._most_watts: dict[str, float] = {}

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        used = window.by_gpu("gpu_utilization_percent")
        drawn = window.by_gpu("gpu_power_watts")
        limits = window.by_gpu("gpu_power_limit_watts")
        measured = [uuid for uuid in used if uuid in drawn and uuid in limits]
        self._stuck.keep_only(measured)
        for uuid in measured:
            most = max(self._most_watts.get(uuid, 0.0), drawn[uuid].value)
            self._most_watts[uuid] = most
            found = self._judged(uuid, used[uuid], drawn[uuid].value, limits[uuid].value, window)
            if found is not None:
                yield found

    def _judged(
        self, uuid: str, used: Sample, watts: float, limit_watts: float, window: SnapshotWindow
    ) -> AlertFinding | None:
        thresholds = self._thresholds
        limit = hang_limit(watts, limit_watts, self._most_watts[uuid], thresholds)
        if not is_gpu_spinning(used.value, watts, limit, thresholds):
            self._stuck.ends(uuid)
            passed = not seems_busy(used.value, thresholds) or watts >= limit.watts * _HANG_CLEAR
            level = AlertLevel.GOOD if passed else AlertLevel.BETWEEN
            return self._finding(uuid, used.value, watts, limit.watts, level, None)
        if not window.progress_known:
            self._stuck.ends(uuid)
            return None
        since, count = self._stuck.holds(uuid, window)
        moved = last_progress(window.progress)
        if moved is not None and moved > since:
            self._stuck.ends(uuid)
            return self._finding(uuid, used.value, watts, limit.watts, AlertLevel.GOOD, None)
        is_bad = is_gpu_hung(window.time - since, count, limit, thresholds)
        level = AlertLevel.BAD if is_bad else AlertLevel.BETWEEN
        return self._finding(uuid, used.value, watts, limit.watts, level, since)

    @staticmethod
    def _finding(
        uuid: str, used: float, watts: float, bound: float, level: AlertLevel, since: float | None
    ) -> AlertFinding:
        name = gpu_name(uuid)
        text = (
            f"{name} seems {used:.0f} % used but draws {watts:.0f} W, near idle (below "
            f"{bound:.0f} W), and the job does not get on: probably a hang in a collective."
            if level is AlertLevel.BAD
            else f"{name} is used {used:.0f} % and draws {watts:.0f} W."
        )
        return AlertFinding(
            subject=uuid,
            level=level,
            severity=Severity.CRITICAL,
            value=watts,
            bound=bound,
            unit="W",
            since=since,
            text=text,
            remedy="Look where each rank stands (`lattice attach`, then py-spy dump), find the one "
            "that is missing, and set NCCL_DEBUG=INFO and a timeout for collectives.",
        )


class GpuIdleAlert:
    """A GPU that is almost idle: its utilisation is below the bound for longer than allowed."""

    rule = AlertRule.GPU_IDLE

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._low = Lasting()

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        cards = window.by_gpu("gpu_utilization_percent")
        self._low.keep_only(cards)
        for uuid, sample in cards.items():
            if is_gpu_low(sample.value, self._thresholds):
                since, _ = self._low.holds(uuid, window)
                idle = is_gpu_idle(sample.value, window.time - since, self._thresholds)
                yield self._finding(
                    uuid, sample.value, AlertLevel.BAD if idle else AlertLevel.BETWEEN, since
                )
                continue
            self._low.ends(uuid)
            clear = sample.value >= self._thresholds.gpu_idle_percent * _IDLE_CLEAR
            yield self._finding(
                uuid, sample.value, AlertLevel.GOOD if clear else AlertLevel.BETWEEN, None
            )

    def _finding(
        self, uuid: str, value: float, level: AlertLevel, since: float | None
    ) -> AlertFinding:
        name, bound = gpu_name(uuid), self._thresholds.gpu_idle_percent
        text = (
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
            text=text,
            remedy="See whether the job waits for input, or for another rank; ask for fewer GPUs "
            "if it needs none.",
        )


class GpuMemory:
    """A GPU with almost full memory: the next allocation may fail. Fires at once."""

    rule = AlertRule.GPU_MEMORY

    def __init__(self, thresholds: Thresholds) -> None:
        self._bound = thresholds.gpu_memory_percent

    def check(self, window: SnapshotWindow) -> Iterator[AlertFinding]:
        total = window.by_gpu("gpu_memory_total_bytes")
        for uuid, used in window.by_gpu("gpu_memory_used_bytes").items():
            if uuid not in total or total[uuid].value <= 0:
                continue
            share = used.value / total[uuid].value * 100
            level = AlertLevel.BAD if share > self._bound else AlertLevel.BETWEEN
            if share <= self._bound - _MEMORY_CLEAR:
                level = AlertLevel.GOOD
            yield AlertFinding(
                subject=uuid,
                level=level,
                value=share,
                bound=self._bound,
                unit="%",
                text=f"{gpu_name(uuid)} has {share:.1f} % of its memory in use; "
                f"the bound is {self._bound:g} %.",
                remedy="A smaller batch, or activation checkpointing, leaves room before it fails.",
            )
