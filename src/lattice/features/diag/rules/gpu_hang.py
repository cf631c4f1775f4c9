"""Full utilisation at idle power without progress: ranks that spin in a collective. Pure.

The kernel of a collective spins while it waits for a missing rank. So the GPU seems fully used, but
draws little power. The host spins too, so processor time is no sign of progress here; output,
storage and the job's own network are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.alert import AlertRule
from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    card,
    findings,
    firing,
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
        judged = of_metric(case, "gpu_utilization_percent", partial(_judged, case))
        template = FindingTemplate(
            unit="W",
            remedy="`lattice diag ID --stacks` shows which rank is missing from the "
            "collective. Set NCCL_DEBUG=INFO and a timeout for collectives, then `scancel` "
            "and submit again.",
        )
        yield from findings(self, case, judged, template)


def _judged(
    case: Case, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Judged]:
    watts, limits = per_gpu(snapshot, "gpu_power_watts"), per_gpu(snapshot, "gpu_power_limit_watts")
    if not watts:
        yield lacking(node, snapshot, "gpu_power_watts")
    elif snapshot.progress is None:
        reason = "the node does not tell whether the job gets on"
        yield MissingObservation(node=node, reason=reason, lack=Lack.TOO_EARLY)
    else:
        for each in samples:
            uuid = each.label("gpu_uuid")
            if uuid in watts:
                limit = limits[uuid].value if uuid in limits else None
                yield _one(case, node, snapshot, each, watts[uuid].value, limit)


def _one(
    case: Case, node: str, snapshot: NodeSnapshot, used: Sample, watts: float, limit: float | None
) -> Observation:
    uuid = used.label("gpu_uuid")
    alerted = any(each.subject == uuid for each in firing(snapshot, AlertRule.GPU_HANG))
    hangs = alerted or (limit is not None and _hangs(case, snapshot, used, watts, limit))
    evidence = f"{card(uuid)} on {node} is used {used.value:.0f} % and draws {watts:.0f} W"
    if limit is not None:
        evidence += f" of {limit:.0f} W"
    if hangs:
        evidence += ", near idle, and the job does not get on: it waits in a collective"
    return Observation(
        subject=Subject(node=node, gpu=uuid),
        verdict=Verdict.BAD if hangs else Verdict.OK,
        measured=watts,
        evidence=evidence,
    )


def _hangs(
    case: Case, snapshot: NodeSnapshot, used: Sample, watts: float, limit_watts: float
) -> bool:
    """Return True if a GPU hangs now and did in its trace of the last ten minutes."""
    moved = last_progress(snapshot.progress) if snapshot.progress is not None else None
    uuid, targets = used.label("gpu_uuid"), case.targets
    past_use = case.traces.get((Shown.GPU_UTILIZATION, snapshot.node, uuid), ())
    past_power = case.traces.get((Shown.GPU_POWER_DRAW, snapshot.node, uuid), ())
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
