"""Memory near the limit at which the job is killed. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import GIB, Area, Case, Finding, Subject, Verdict, worst
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    Observation,
    findings,
    lacking,
    largest_first,
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
        bound = case.targets.memory_percent
        judged = of_metric(case, "memory_used_bytes", partial(_judged, bound))
        template = FindingTemplate(target=bound, unit="%")
        yield from findings(self, case, largest_first(judged), template)


def _judged(
    bound: float, node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]
) -> Iterator[Judged]:
    limits = snapshot.now.of("memory_limit_bytes")
    if not limits or not limits[0].value:
        yield lacking(node, snapshot, "memory_limit_bytes")
        return
    used, limit = samples[0].value, limits[0].value
    percent = 100.0 * used / limit
    stalled = pressure(snapshot, "memory", "full")
    evidence = f"{node} holds {used / GIB:.1f} of {limit / GIB:.1f} GiB ({percent:.0f} %)"
    verdict = Verdict.OK
    if percent >= bound:
        verdict = Verdict.BAD if percent >= _GRAVE_PERCENT else Verdict.ATTENTION
        evidence += ", and beyond that it is killed"
    if stalled is not None and stalled >= _STALLED_PERCENT:
        verdict = worst((verdict, Verdict.ATTENTION))
        evidence += f", and stalls {stalled:.0f} % of the time for want of memory"
    ask = math.ceil(limit * _NEXT / GIB)
    yield Observation(
        subject=Subject(node=node),
        verdict=verdict,
        measured=percent,
        evidence=evidence,
        remedy=f"Ask for more next time (`sbatch --mem={ask}G`), or take smaller batches or fewer "
        "loader workers.",
    )
