"""One rank or node that is slower than the rest, by a robust test. Pure.

Ranks that work in step wait for the slowest, so all get its speed. Their resource use shows it. A
GPU is less used than the others, or a node or rank has less processor time. Or one rank computes
while all others wait.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from lattice.domain.jobfacts import NodeFacts, TaskFact
from lattice.domain.measured import Shown
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Observation,
    each_facts,
    earlier_facts,
    findings,
    unknown,
)

_K = TypeVar("_K", bound=Hashable)
FEWEST = 3
"""With two values it is unknown which one is the outlier."""
_NORMAL = 1.4826
"""MAD times this is the standard deviation of a normal distribution."""
_DEVIATIONS = 6.0
_LEAST_SPREAD = 0.05
"""As a share of the median: even equal machines differ by this much."""
_TRACED_S = 300.0
_FEWEST_POINTS = 4
_YOUNGEST_S = 60.0
_ALONE = ((80.0, 50.0), (50.0, 10.0))
"""How busy one must be, and at what percentage of that the rest must be.

On a virtual machine or a node with too few cores, a busy rank gets less than a core. It still
counts as the only one at work if the others do almost nothing.
"""
_FLOORS = {Shown.GPU_UTILIZATION: 15.0, Shown.CPU_UTILIZATION: 50.0}
_NOUNS = {Shown.GPU_UTILIZATION: "GPU utilization", Shown.CPU_UTILIZATION: "processor use"}


class Straggler:
    """Reads the traces of the last five minutes, and each rank's processor time."""

    name, title, area, order = "straggler", "Ranks alike", Area.JOB, 30
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        parts = [*_groups(case)]
        if not parts:
            if len(case.nodes) < FEWEST and (case.job.allocation.tasks or 0) < FEWEST:
                # One or two can't be compared.
                return
            reason = case.no_traces or "too little was measured yet to compare"
            lack = Lack.SILENT if case.no_traces else Lack.TOO_EARLY
            yield unknown(self, case, reason, lack, ())
            return
        seen = [each for what, values in parts for each in _judged(case, what, values)]
        template = FindingTemplate(
            target=case.targets.straggler_percent,
            unit="%",
            remedy="`lattice diag ID --stacks` shows what it does; `lattice top ID --per-node` "
            "what it uses. If the node is at fault, leave it out (`sbatch --exclude=NODE`).",
        )
        yield from findings(self, case, seen, template)


def _groups(case: Case) -> Iterator[tuple[str, Mapping[Subject, float]]]:
    """Yield the groups to compare; each needs at least three measurements."""
    ranks = _ranks(case)
    if len(ranks) >= FEWEST:
        yield "rank", ranks
    for metric in _FLOORS:
        means = _means(case, metric)
        if len(means) >= FEWEST:
            yield metric.value, means


def _ranks(case: Case) -> dict[Subject, float]:
    """Return the percentage of a core that each rank used since the last look, or its start."""
    found: dict[Subject, float] = {}
    for node, facts in each_facts(case):
        earlier = earlier_facts(case, node)
        for rank, tasks in _by_rank(facts.tasks).items():
            share = _lately(facts, earlier, tasks) if earlier is not None else _ever(facts, tasks)
            if share is not None:
                found[Subject(node=node, rank=rank)] = share
    return found


def _lately(now: NodeFacts, earlier: NodeFacts, tasks: Sequence[TaskFact]) -> float | None:
    before = {each.pid: each for each in earlier.tasks}
    used_s = [
        each.cpu_seconds - old.cpu_seconds
        for each in tasks
        if (old := before.get(each.pid)) is not None
        # The age is measured anew at each look, so start times never match exactly. A process that
        # reuses a pid began after the earlier one was seen.
        and (each.started is None or each.started < earlier.time)
        and each.cpu_seconds is not None
        and old.cpu_seconds is not None
        and each.cpu_seconds >= old.cpu_seconds
    ]
    return 100.0 * sum(used_s) / (now.time - earlier.time) if used_s else None


def _ever(now: NodeFacts, tasks: Sequence[TaskFact]) -> float | None:
    """Return the use since its start, for the first look."""
    begun = [each.started for each in tasks if each.started is not None]
    used_s = [each.cpu_seconds for each in tasks if each.cpu_seconds is not None]
    if not begun or not used_s or now.time - min(begun) < _YOUNGEST_S:
        return None
    return 100.0 * sum(used_s) / (now.time - min(begun))


def _by_rank(tasks: tuple[TaskFact, ...]) -> dict[int, list[TaskFact]]:
    found: dict[int, list[TaskFact]] = {}
    for each in tasks:
        if each.rank is not None:
            found.setdefault(each.rank, []).append(each)
    return found


def _means(case: Case, metric: Shown) -> dict[Subject, float]:
    since = case.now - _TRACED_S
    found = {}
    for key, points in case.traces.items():
        if key[0] is not metric or key[1] not in case.nodes:
            continue
        values = [value for time, value in points if time >= since]
        if len(values) >= _FEWEST_POINTS:
            found[Subject(node=key[1], gpu=key[2])] = sum(values) / len(values)
    return found


def _judged(case: Case, what: str, values: Mapping[Subject, float]) -> Iterator[Observation]:
    middle = median(values.values())
    least = case.targets.straggler_percent
    floor = 30.0 if what == "rank" else _FLOORS[Shown(what)]
    far = outliers(values, least_percent=least, floor=floor)
    for subject, value in values.items():
        by = far.get(subject, 0.0)
        # One that does more than the rest is slow only if the rest waits for it.
        alone = what == "rank" and any(
            value >= busy and middle <= waits * value / 100.0 for busy, waits in _ALONE
        )
        odd = by < 0 or (by > 0 and alone)
        yield Observation(
            subject=subject,
            verdict=Verdict.ATTENTION if odd else Verdict.OK,
            measured=abs(by),
            evidence=_evidence(what, subject, value, middle, odd=odd, among=len(values)),
        )


def _evidence(
    what: str, subject: Subject, value: float, middle: float, *, odd: bool, among: int
) -> str:
    if not odd:
        return f"none of {among} stands apart from the others"
    noun = "processor use" if what == "rank" else _NOUNS[Shown(what)]
    name = f"rank {subject.rank} on {subject.node}" if subject.rank is not None else subject.node
    name = f"{subject.gpu[:12]} on {subject.node}" if subject.gpu else name
    if value < middle:
        return f"{name}: {noun} {value:.0f} %, of the {among - 1} others {middle:.0f} %"
    return f"{name}: {noun} {value:.0f} %, while the {among - 1} others wait at {middle:.0f} %"


def outliers(values: Mapping[_K, float], *, least_percent: float, floor: float) -> dict[_K, float]:
    """Return the outliers, with their distance in percent of the median (negative: below).

    An outlier distorts mean and deviation. The median and the median absolute deviation (MAD)
    resist that, as long as most values are alike.

    An outlier is more than six robust deviations, `least_percent` and `floor` away. `floor` is in
    the unit of the values. The result is empty if more than a third of the values are outliers.
    """
    if len(values) < FEWEST:
        return {}
    middle = median(values.values())
    spread = _NORMAL * median(abs(each - middle) for each in values.values())
    spread = max(spread, _LEAST_SPREAD * abs(middle))
    far_by = max(_DEVIATIONS * spread, abs(middle) * least_percent / 100.0, floor)
    far = {
        key: 100.0 * (value - middle) / middle if middle else 100.0
        for key, value in values.items()
        if abs(value - middle) > far_by
    }
    return far if len(far) * FEWEST <= len(values) else {}
