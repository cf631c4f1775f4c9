"""A process of the job was killed for lack of memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lattice.domain.metric import Sample
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import GIB, Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import FindingTemplate, Observation, findings, of_metric
from lattice.observe.conditions import oom_kills

_NEXT = 1.5


class OomKill:
    """Reads the kernel's count for the job's cgroup, which begins with the job."""

    name, title, area, order = "oom_kill", "Killed for want of memory", Area.MEMORY, 60
    explains = frozenset({"job_hang", "gpu_hang", "straggler", "memory_limit", "gpu_idle"})

    def judge(self, case: Case) -> Iterator[Finding]:
        judged = of_metric(case, "memory_oom_kills_total", _kills)
        yield from findings(self, case, judged, FindingTemplate(target=0.0))


def _kills(node: str, snapshot: NodeSnapshot, samples: Sequence[Sample]) -> Iterator[Observation]:
    count = oom_kills(each.value for each in samples)
    limits = snapshot.now.of("memory_limit_bytes")
    ask = f"`sbatch --mem={math.ceil(limits[0].value * _NEXT / GIB)}G`" if limits else "`--mem`"
    killed = f"{count:.0f} processes" if count > 1 else "a process"
    of_limit = f" at the limit of {limits[0].value / GIB:.1f} GiB" if limits else ""
    yield Observation(
        subject=Subject(node=node),
        verdict=Verdict.BAD if count else Verdict.OK,
        measured=count,
        evidence=f"the kernel killed {killed} of the job on {node}{of_limit}"
        if count
        else "no process was killed for want of memory",
        remedy=f"Ask for more ({ask}) or use less: what was killed is gone, and the other ranks "
        "may wait for it. `scancel` and submit again.",
    )
