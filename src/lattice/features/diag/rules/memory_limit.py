"""Memory near the limit at which the job is killed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import GIB, Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    findings,
    lacking,
    of_metric,
    pressure,
)

_NEXT = 1.25
_GRAVE_PERCENT = 98.0
_STALLED_PERCENT = 20.0


class MemoryLimit:
    """Reads resident memory, the limit of the job's cgroup, and its memory pressure."""

    name, title, area, order = "memory_limit", "Memory", Area.MEMORY, 70
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        lacks: list[MissingObservation] = []
        bound = case.targets.memory_percent

        def judged(
            node: str, sight: NodeSnapshot, samples: Sequence[Sample]
        ) -> Iterator[Observation]:
            limits = sight.now.of("memory_limit_bytes")
            if not limits or not limits[0].value:
                lacks.append(lacking(node, sight, "memory_limit_bytes"))
                return
            yield _one(node, sight, samples[0].value, limits[0].value, bound)

        seen, unseen = of_metric(case, "memory_used_bytes", judged)
        seen.sort(key=lambda each: each.measured or 0.0, reverse=True)
        yield from findings(
            self, case, seen, [*unseen, *lacks], FindingTemplate(target=bound, unit="%")
        )


def _one(node: str, sight: NodeSnapshot, used: float, limit: float, bound: float) -> Observation:
    percent = 100.0 * used / limit
    stalled = pressure(sight, "memory", "full")
    words = f"{node} holds {used / GIB:.1f} of {limit / GIB:.1f} GiB ({percent:.0f} %)"
    verdict = Verdict.OK
    if percent >= bound:
        verdict = Verdict.BAD if percent >= _GRAVE_PERCENT else Verdict.ATTENTION
        words += ", and beyond that it is killed"
    if stalled is not None and stalled >= _STALLED_PERCENT:
        verdict = max(verdict, Verdict.ATTENTION, key=list(Verdict).index)
        words += f", and stalls {stalled:.0f} % of the time for want of memory"
    ask = math.ceil(limit * _NEXT / GIB)
    return Observation(
        subject=Subject(node=node),
        verdict=verdict,
        measured=percent,
        words=words,
        remedy=f"Ask for more next time (`sbatch --mem={ask}G`), or take smaller batches or fewer "
        "loader workers.",
    )
