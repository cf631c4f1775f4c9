"""A GPU that seems fully used at idle power, in a job without progress. Pure.

A rank that waits in a collective for a missing rank looks like that: its kernel spins. The host
spins too, so processor time is no sign of progress here; output, storage and the job's own network
are.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import AlertRule, Severity
from lattice.domain.metric import Sample
from lattice.features.watch.node.rules.finding import (
    AlertFinding,
    AlertLevel,
    Lasting,
    SnapshotWindow,
    gpu_name,
)
from lattice.observe.conditions import (
    hang_limit,
    is_gpu_hung,
    is_gpu_spinning,
    last_progress,
    seems_busy,
)
from lattice.observe.thresholds import Thresholds

_CLEAR = 1.1


class GpuHangAlert:
    """Idle power: below a share of the GPU's limit, and of the most it drew in this job."""

    rule = AlertRule.GPU_HANG

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._stuck = Lasting()
        self._most_watts: dict[str, float] = {}

    def look(self, glance: SnapshotWindow) -> Iterator[AlertFinding]:
        used = glance.by_gpu("gpu_utilization_percent")
        drawn = glance.by_gpu("gpu_power_watts")
        limits = glance.by_gpu("gpu_power_limit_watts")
        measured = [uuid for uuid in used if uuid in drawn and uuid in limits]
        self._stuck.keep_only(measured)
        for uuid in measured:
            most = max(self._most_watts.get(uuid, 0.0), drawn[uuid].value)
            self._most_watts[uuid] = most
            found = self._judged(uuid, used[uuid], drawn[uuid].value, limits[uuid].value, glance)
            if found is not None:
                yield found

    def _judged(
        self, uuid: str, used: Sample, watts: float, limit_watts: float, glance: SnapshotWindow
    ) -> AlertFinding | None:
        thresholds = self._thresholds
        limit = hang_limit(watts, limit_watts, self._most_watts[uuid], thresholds)
        if not is_gpu_spinning(used.value, watts, limit, thresholds):
            self._stuck.ends(uuid)
            passed = not seems_busy(used.value, thresholds) or watts >= limit.watts * _CLEAR
            level = AlertLevel.GOOD if passed else AlertLevel.BETWEEN
            return self._finding(uuid, used.value, watts, limit.watts, level, None)
        if not glance.progress_known:
            self._stuck.ends(uuid)
            return None
        since, looks = self._stuck.holds(uuid, glance)
        moved = last_progress(glance.progress)
        if moved is not None and moved > since:
            self._stuck.ends(uuid)
            return self._finding(uuid, used.value, watts, limit.watts, AlertLevel.GOOD, None)
        is_bad = is_gpu_hung(glance.time - since, looks, limit, thresholds)
        level = AlertLevel.BAD if is_bad else AlertLevel.BETWEEN
        return self._finding(uuid, used.value, watts, limit.watts, level, since)

    @staticmethod
    def _finding(
        uuid: str, used: float, watts: float, bound: float, level: AlertLevel, since: float | None
    ) -> AlertFinding:
        name = gpu_name(uuid)
        words = (
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
            words=words,
            remedy="Look where each rank stands (`lattice attach`, then py-spy dump), find the one "
            "that is missing, and set NCCL_DEBUG=INFO and a timeout for collectives.",
        )
