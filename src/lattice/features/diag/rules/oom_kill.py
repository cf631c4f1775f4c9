"""A process of the job was killed for want of memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lattice.domain.metric import Sample
from lattice.domain.nodelook import NodeSight
from lattice.features.diag.model import GIB, Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.saying import Line, Seen, findings, of_metric

_NEXT = 1.5


class OomKill:
    """Reads the kernel's count of the job's cgroup, which begins with the job."""

    name, title, area = "oom_kill", "Killed for want of memory", Area.MEMORY
    explains = frozenset({"job_hang", "gpu_hang", "straggler", "memory_limit", "gpu_idle"})

    def judge(self, case: Case) -> Iterator[Finding]:
        seen, unseen = of_metric(case, "memory_oom_kills_total", _kills)
        yield from findings(self, case, seen, unseen, Line(target=0.0))


def _kills(node: str, sight: NodeSight, samples: Sequence[Sample]) -> Iterator[Seen]:
    count = samples[0].value
    limits = sight.now.of("memory_limit_bytes")
    ask = f"`sbatch --mem={math.ceil(limits[0].value * _NEXT / GIB)}G`" if limits else "`--mem`"
    killed = f"{count:.0f} processes" if count > 1 else "a process"
    of_limit = f" at the limit of {limits[0].value / GIB:.1f} GiB" if limits else ""
    yield Seen(
        subject=Subject(node=node),
        verdict=Verdict.BAD if count else Verdict.OK,
        measured=count,
        words=f"the kernel killed {killed} of the job on {node}{of_limit}"
        if count
        else "no process was killed for want of memory",
        remedy=f"Ask for more ({ask}) or use less: what was killed is gone, and the other ranks "
        "may wait for it. `scancel` and submit again.",
    )
