"""GPUs that the job holds and does not use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.alert import AlertRule
from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Sense, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Observation,
    card,
    findings,
    firing,
    of_metric,
)
from lattice.observe.conditions import is_gpu_idle, is_gpu_low


class GpuIdle:
    """Reads each GPU's utilisation, the node's own alert, and the trace of the last minutes."""

    name, title, area, order = "gpu_idle", "GPU utilization", Area.GPU, 240
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        judged = of_metric(case, "gpu_utilization_percent", partial(_judged, case))
        seen = [each for each in judged if isinstance(each, Observation)]
        if seen and not any(each.verdict.is_sick for each in seen):
            judged = [_mean(seen), *judged]
        template = FindingTemplate(
            target=case.targets.gpu_idle_percent,
            sense=Sense.AT_LEAST,
            unit="%",
            remedy="Ask for fewer (`sbatch --gpus=N`), or give the cards work: "
            "`lattice diag ID --stacks` shows what the ranks do instead.",
        )
        yield from findings(self, case, judged, template)


def _judged(
    case: Case, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Observation]:
    targets = case.targets
    alerted = {each.subject for each in firing(snapshot, AlertRule.GPU_IDLE)}
    for each in samples:
        uuid = each.label("gpu_uuid")
        low_s = _low_s(case, node, uuid)
        idle = is_gpu_idle(each.value, low_s, targets)
        idle = idle or (uuid in alerted and is_gpu_low(each.value, targets))
        evidence = f"{card(uuid)} on {node} is used {each.value:.0f} %"
        if idle:
            minutes = max(low_s, targets.gpu_idle_s) / 60
            evidence += f", below {targets.gpu_idle_percent:g} % for {minutes:.0f} min or more"
        yield Observation(
            subject=Subject(node=node, gpu=uuid),
            verdict=Verdict.ATTENTION if idle else Verdict.OK,
            measured=each.value,
            evidence=evidence,
        )


def _mean(seen: Sequence[Observation]) -> Observation:
    values = [each.measured for each in seen if each.measured is not None]
    mean = sum(values) / len(values)
    evidence = f"{mean:.0f} % on average over {len(values)} GPUs, {min(values):.0f} % the least"
    return Observation(subject=seen[0].subject, measured=mean, evidence=evidence)


def _low_s(case: Case, node: str, uuid: str) -> float:
    """Return for how many seconds, up to now, every point of the trace was low."""
    points = case.traces.get((Shown.GPU_UTILIZATION, node, uuid), ())
    if not points or case.now - points[-1][0] > 3 * case.interval_s:
        return 0.0
    begun = case.now
    for time, value in reversed(points):
        if not is_gpu_low(value, case.targets):
            break
        begun = time
    return case.now - begun
