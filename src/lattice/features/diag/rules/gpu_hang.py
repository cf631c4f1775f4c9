"""Full utilisation at idle power without progress: ranks that spin in a collective. Pure.

The kernel of a collective spins while it waits for a missing rank. So the GPU seems fully used, but
draws little power. The host spins too, so processor time is no sign of progress here; output,
storage and the job's own network are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.domain.alert import AlertRule, Phase
from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    card,
    findings,
    lacking,
    of_metric,
    per_gpu,
)
from lattice.observe.conditions import hang_limit, is_gpu_hung, is_gpu_spinning, last_progress


class GpuHang:
    """Reads utilisation, power and its limit, signs of progress, and the node's own alert."""

    name, title, area, order = "gpu_hang", "GPU power while used", Area.GPU, 210
    explains = frozenset({"job_hang", "straggler", "gpu_idle", "buffered_output", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        lacks: list[MissingObservation] = []

        def judged(
            node: str, sight: NodeSnapshot, samples: Sequence[Sample]
        ) -> Iterator[Observation]:
            watts, limits = (
                per_gpu(sight, "gpu_power_watts"),
                per_gpu(sight, "gpu_power_limit_watts"),
            )
            if not watts:
                lacks.append(lacking(node, sight, "gpu_power_watts"))
            elif sight.progress is None:
                reason = "the node does not tell whether the job gets on"
                lacks.append(MissingObservation(node=node, reason=reason, lack=Lack.TOO_EARLY))
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
            FindingTemplate(
                unit="W",
                remedy="`lattice diag ID --stacks` shows which rank is missing from the "
                "collective. Set NCCL_DEBUG=INFO and a timeout for collectives, then `scancel` "
                "and submit again.",
            ),
        )


def _one(
    case: Case, node: str, sight: NodeSnapshot, used: Sample, watts: float, limit: float | None
) -> Observation:
    uuid = used.label("gpu_uuid")
    alerted = any(
        each.rule is AlertRule.GPU_HANG and each.subject == uuid and each.phase is Phase.FIRING
        for each in sight.firing
    )
    hangs = alerted or (limit is not None and _hangs(case, sight, used, watts, limit))
    words = f"{card(uuid)} on {node} is used {used.value:.0f} % and draws {watts:.0f} W"
    if limit is not None:
        words += f" of {limit:.0f} W"
    if hangs:
        words += ", near idle, and the job does not get on: it waits in a collective"
    return Observation(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.BAD if hangs else Verdict.OK,
        measured=watts,
        words=words,
    )


def _hangs(case: Case, sight: NodeSnapshot, used: Sample, watts: float, limit_watts: float) -> bool:
    """Return True if a GPU hangs now and did in its trace of the last ten minutes."""
    moved = last_progress(sight.progress) if sight.progress is not None else None
    uuid, targets = used.label("gpu_uuid"), case.targets
    past_use = case.traces.get((Shown.GPU_UTILIZATION, sight.node, uuid), ())
    past_power = case.traces.get((Shown.GPU_POWER_DRAW, sight.node, uuid), ())
    limit = hang_limit(watts, limit_watts, max([watts, *(each[1] for each in past_power)]), targets)
    since = case.now - limit.after_s - case.interval_s
    percents = [value for time, value in past_use if time >= since]
    drawn = [value for time, value in past_power if time >= since]
    samples = min(len(percents), len(drawn))
    return (
        moved is not None
        and is_gpu_hung(case.now - moved, samples, limit, targets)
        and is_gpu_spinning(min([used.value, *percents]), max([watts, *drawn]), limit, targets)
    )
