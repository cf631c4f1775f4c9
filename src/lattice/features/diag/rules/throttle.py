"""A GPU that is throttled by heat or lack of power. Pure.

A GPU under full load reaches its power limit; that alone is no fault. It is one if the GPU is
throttled far below its limit, or if the hardware brakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    Card,
    FindingTemplate,
    Observation,
    card,
    findings,
    of_metric,
    per_gpu,
    with_health,
)
from lattice.observe.conditions import ThrottleCause, throttle_causes


class Throttle:
    """Reads the throttle reasons of each GPU."""

    name, title, area, order = "throttle", "GPU clocks held back", Area.GPU, 230
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        judged = of_metric(case, "gpu_throttled", partial(_cards, case))
        template = FindingTemplate(
            remedy="Tell the site: the card is not cooled or powered well enough. Leave the "
            "node out next time (`sbatch --exclude=NODE`).",
        )
        yield from findings(self, case, judged, template)


def cards_held_back(case: Case) -> frozenset[Card]:
    """Return the GPUs that this rule reports."""
    return frozenset(
        (each.subject.node, each.subject.gpu)
        for each in of_metric(case, "gpu_throttled", partial(_cards, case))
        if isinstance(each, Observation) and each.verdict.is_sick
    )


def _cards(
    case: Case, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Observation]:
    reasons: dict[str, list[str]] = {}
    for each in samples:
        found = reasons.setdefault(each.label("gpu_uuid"), [])
        if each.value > 0:
            found.append(each.label("reason"))
    watts, limits = per_gpu(snapshot, "gpu_power_watts"), per_gpu(snapshot, "gpu_power_limit_watts")
    heat = per_gpu(snapshot, "gpu_temperature_celsius")
    for uuid, given in reasons.items():
        drawn, limit = (each[uuid].value if uuid in each else None for each in (watts, limits))
        causes = throttle_causes(given, drawn, limit, case.targets)
        held = [
            f"{reason} at {drawn:.0f} W of {limit:.0f} W"
            if cause is ThrottleCause.SHORTAGE
            else reason
            for reason, cause in causes.items()
            if cause is not ThrottleCause.LIMIT
        ]
        degrees = f" at {heat[uuid].value:.0f} °C" if uuid in heat else ""
        evidence = (
            f"{card(uuid)} on {node} is slowed down{degrees} ({', '.join(sorted(held))})"
            if held
            else "none by heat or for want of power"
        )
        is_fault = any(each.is_fault for each in causes.values())
        sick = Verdict.BAD if is_fault else Verdict.ATTENTION
        observation = Observation(
            subject=Subject(node=node, gpu=uuid),
            verdict=sick if held else Verdict.OK,
            evidence=evidence,
        )
        yield with_health(case, observation) if held else observation
