"""GPUs that the job holds and does not use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.domain.alert import Phase
from lattice.domain.alert import Rule as AlertRule
from lattice.domain.measured import Shown
from lattice.domain.metric import Sample
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import Area, Case, Finding, Sense, Subject, Verdict
from lattice.features.diag.rules.saying import Line, Seen, card, findings, of_metric

_LASTING_S = 60.0


class GpuIdle:
    """Reads each card's utilisation, the node's own alert, and the trace of the last minutes."""

    name, title, area = "gpu_idle", "GPU utilization", Area.GPU
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        bound = case.targets.gpu_idle_percent

        def judged(node: str, sight: NodeSight, samples: Sequence[Sample]) -> Iterator[Seen]:
            alerted = {
                each.subject
                for each in sight.firing
                if each.rule is AlertRule.GPU_IDLE and each.phase is Phase.FIRING
            }
            for each in samples:
                uuid = each.label("gpu_uuid")
                low_s = _low_s(case, node, uuid, bound) if each.value < bound else 0.0
                idle = uuid in alerted or low_s >= _LASTING_S
                idle = idle and each.value < bound
                words = f"{card(uuid)} on {node} is used {each.value:.0f} %"
                if idle:
                    words += (
                        f", below {bound:g} % for {max(low_s, _LASTING_S) / 60:.0f} min or more"
                    )
                yield Seen(
                    subject=Subject(node=node, gpu=uuid),
                    verdict=Verdict.ATTENTION if idle else Verdict.OK,
                    measured=each.value,
                    words=words,
                )

        seen, unseen = of_metric(case, "gpu_utilization_percent", judged)
        if seen and not any(each.verdict.is_sick for each in seen):
            seen = [_mean(seen), *seen]
        yield from findings(
            self,
            case,
            seen,
            unseen,
            Line(
                target=bound,
                sense=Sense.AT_LEAST,
                unit="%",
                remedy="Ask for fewer (`sbatch --gpus=N`), or give the cards work: "
                "`lattice diag ID --stacks` shows what the ranks do instead.",
            ),
        )


def _mean(seen: Sequence[Seen]) -> Seen:
    values = [each.measured for each in seen if each.measured is not None]
    mean = sum(values) / len(values)
    words = f"{mean:.0f} % on average over {len(values)} GPUs, {min(values):.0f} % the least"
    return Seen(subject=seen[0].subject, measured=mean, words=words)


def _low_s(case: Case, node: str, uuid: str, bound: float) -> float:
    """For how long, up to now, no point of the trace was at or above the bound."""
    points = case.traces.get((Shown.GPU_UTILIZATION, node, uuid), ())
    if not points or case.now - points[-1][0] > 3 * case.interval_s:
        return 0.0
    begun = case.now
    for time, value in reversed(points):
        if value >= bound:
            break
        begun = time
    return case.now - begun
