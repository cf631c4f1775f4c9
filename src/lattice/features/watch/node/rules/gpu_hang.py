"""A GPU that seems fully used, draws next to no power, in a job that does not get on. Pure.

So looks a rank that waits in a collective for one that never comes: its kernel spins. The host
spins as well, which is why time on a processor is no sign of progress here; output, storage and
the job's own network are.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.alert import Progress, Rule, Severity
from lattice.domain.metric import Sample
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.rules.finding import Finding, Glance, Lasting, Level, gpu_name

_FEWEST_LOOKS = 3
_CLEAR = 1.1


class GpuHang:
    """Near idle: below a share of the card's limit, and of the most it drew in this job."""

    rule = Rule.GPU_HANG

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._stuck = Lasting()
        self._most_watts: dict[str, float] = {}

    def look(self, glance: Glance) -> Iterator[Finding]:
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
        self, uuid: str, used: Sample, watts: float, limit_watts: float, glance: Glance
    ) -> Finding | None:
        of_limit = self._bounds.gpu_hang_power_of_limit * limit_watts
        of_past = self._bounds.gpu_hang_power_of_past * self._most_watts[uuid]
        drew_more = watts < of_past
        # A card that never drew more has no past to be held against.
        bound = min(of_limit, of_past) if drew_more else of_limit
        seems_used = used.value >= self._bounds.gpu_hang_percent
        if not (seems_used and watts < bound):
            self._stuck.ends(uuid)
            passed = not seems_used or watts >= bound * _CLEAR
            level = Level.GOOD if passed else Level.BETWEEN
            return self._finding(uuid, used.value, watts, bound, level, None)
        if not glance.progress_known:
            self._stuck.ends(uuid)
            return None
        since, looks = self._stuck.holds(uuid, glance)
        moved = last_moved(glance.progress)
        if moved is not None and moved > since:
            self._stuck.ends(uuid)
            return self._finding(uuid, used.value, watts, bound, Level.GOOD, None)
        for_s = self._bounds.gpu_hang_s if drew_more else self._bounds.gpu_hang_without_past_s
        is_bad = looks >= _FEWEST_LOOKS and glance.time - since >= for_s
        level = Level.BAD if is_bad else Level.BETWEEN
        return self._finding(uuid, used.value, watts, bound, level, since)

    @staticmethod
    def _finding(
        uuid: str, used: float, watts: float, bound: float, level: Level, since: float | None
    ) -> Finding:
        name = gpu_name(uuid)
        words = (
            f"{name} seems {used:.0f} % used but draws {watts:.0f} W, near idle (below "
            f"{bound:.0f} W), and the job does not get on: probably a hang in a collective."
            if level is Level.BAD
            else f"{name} is used {used:.0f} % and draws {watts:.0f} W."
        )
        return Finding(
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


def last_moved(progress: Progress) -> float | None:
    """When a sign of progress last moved that a rank which only waits can't give."""
    told = [each for each in (progress.output, progress.storage, progress.network) if each]
    return max(told) if told else None
