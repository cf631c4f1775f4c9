"""Full utilisation at idle power without progress: ranks that spin in a collective. Pure.

The kernel of a collective spins while it waits for a rank that never comes, so the card seems fully
used; but it does nothing, and so draws little. The host spins too, so processor time is no sign of
progress here; output, storage and the job's own network are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.domain.alert import Phase, Progress
from lattice.domain.alert import Rule as AlertRule
from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    card,
    findings,
    lacking,
    of_metric,
    per_gpu,
)

_LASTING_S = 60.0
_FEWEST = 3


class GpuHang:
    """Reads utilisation, power and its limit, signs of progress, and the node's own alert."""

    name, title, area = "gpu_hang", "GPU power while used", Area.GPU
    explains = frozenset({"job_hang", "straggler", "gpu_idle", "buffered_output", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        lacks: list[Unseen] = []

        def judged(node: str, sight: NodeSight, samples: Sequence[Sample]) -> Iterator[Seen]:
            watts, limits = (
                per_gpu(sight, "gpu_power_watts"),
                per_gpu(sight, "gpu_power_limit_watts"),
            )
            if not watts:
                lacks.append(lacking(node, sight, "gpu_power_watts"))
            elif sight.progress is None:
                reason = "the node does not tell whether the job gets on"
                lacks.append(Unseen(node=node, reason=reason, lack=Lack.TOO_EARLY))
            else:
                for each in samples:
                    uuid = each.label("gpu_uuid")
                    if uuid in watts:
                        limit = limits[uuid].value if uuid in limits else None
                        yield _one(case, node, sight, each, watts[uuid].value, limit)

        seen, unseen = of_metric(case, "gpu_utilization_percent", judged)
        yield from findings(
            self,
            case,
            seen,
            [*unseen, *lacks],
            Line(
                unit="W",
                remedy="`lattice diag ID --stacks` shows which rank is missing from the "
                "collective. Set NCCL_DEBUG=INFO and a timeout for collectives, then `scancel` "
                "and submit again.",
            ),
        )


def _one(
    case: Case, node: str, sight: NodeSight, used: Sample, watts: float, limit: float | None
) -> Seen:
    uuid = used.label("gpu_uuid")
    alerted = any(
        each.rule is AlertRule.GPU_HANG and each.subject == uuid and each.phase is Phase.FIRING
        for each in sight.firing
    )
    targets = case.targets
    bound = None if limit is None else targets.gpu_hang_power_of_limit * limit
    moved = _last_moved(sight.progress)
    still = moved is not None and case.now - moved >= _LASTING_S
    spins = (
        bound is not None
        and used.value >= targets.gpu_hang_percent
        and watts < bound
        and still
        and _lasts(case, node, uuid, bound)
    )
    words = f"{card(uuid)} on {node} is used {used.value:.0f} % and draws {watts:.0f} W"
    if limit is not None:
        words += f" of {limit:.0f} W"
    if alerted or spins:
        words += ", near idle, and the job does not get on: it waits in a collective"
    return Seen(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.BAD if alerted or spins else Verdict.OK,
        measured=watts,
        words=words,
    )


def _last_moved(progress: Progress | None) -> float | None:
    """When a sign moved that a rank which only waits can't give."""
    if progress is None:
        return None
    told = [each for each in (progress.output, progress.storage, progress.network) if each]
    return max(told, default=None)


def _lasts(case: Case, node: str, uuid: str, bound: float) -> bool:
    """The store's last minutes say the same."""
    since = case.now - _LASTING_S - case.interval_s
    used = [
        value
        for time, value in case.traces.get((Shown.GPU_UTILIZATION, node, uuid), ())
        if time >= since
    ]
    drawn = [
        value
        for time, value in case.traces.get((Shown.GPU_POWER_DRAW, node, uuid), ())
        if time >= since
    ]
    return (
        len(used) >= _FEWEST
        and len(drawn) >= _FEWEST
        and min(used) >= case.targets.gpu_hang_percent
        and max(drawn) < bound
    )
