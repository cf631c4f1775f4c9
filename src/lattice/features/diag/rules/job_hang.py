"""A job without progress on any of its nodes. Pure.

A short pause is no hang, so it must last. A shorter time is enough if all ranks sleep and one of
several is at another place. Then the others seem to wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lattice.base.moment import age
from lattice.domain.jobfacts import TaskFact
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    MissingObservation,
    Observation,
    each_facts,
    each_snapshot,
    findings,
    folded,
)

_SOONER = 4.0
"""The divisor for that shorter time."""
_FEWEST_LOOKS = 3.0
_FEWEST_RANKS = 3
_OF_MANY = 8
"""One of this many ranks may be elsewhere, and then the others seem to wait for it."""
_MOST_NAMED = 8
_ASLEEP = frozenset("SDI")
_STANDS = {"D": "waits for storage or a device", "T": "is stopped", "Z": "has ended"}


class JobHang:
    """Reads each node's signs of progress, and the kernel's state of its ranks."""

    name, title, area, order = "job_hang", "Last sign of progress", Area.JOB, 20
    explains = frozenset({"gpu_idle", "straggler", "buffered_output", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        unseen: list[MissingObservation] = []
        last: dict[str, float] = {}
        odd = _odd_ranks(case)
        waiting = _seem_to_wait(case, odd)
        bound_s = _sooner_s(case) if waiting else case.targets.hang_s
        for node, snapshot in each_snapshot(case):
            moved = snapshot.progress.last if snapshot.progress is not None else None
            if moved is not None:
                last[node] = moved
            elif case.now - case.started > bound_s and snapshot.progress is not None:
                # It was observed, and nothing moved since the start.
                last[node] = case.started
            else:
                reason = "the node does not tell yet whether the job gets on"
                unseen.append(MissingObservation(node=node, reason=reason, lack=Lack.TOO_EARLY))
        template = FindingTemplate(
            target=bound_s,
            unit="s",
            remedy="`lattice diag ID --stacks` shows where every rank stands. If one has died or "
            "waits for ever, `scancel` and submit again from the last checkpoint.",
        )
        yield from findings(self, case, [*_judged(case, last, odd, bound_s), *unseen], template)


def _sooner_s(case: Case) -> float:
    """Return a part of the usual time, but at least a few sampling intervals."""
    usual_s = case.targets.hang_s
    return min(usual_s, max(usual_s / _SOONER, _FEWEST_LOOKS * case.interval_s))


def _judged(
    case: Case, last: dict[str, float], odd: Sequence[tuple[str, TaskFact]], bound_s: float
) -> list[Observation]:
    if not last:
        return []
    newest = max(last.values())
    still_s = max(0.0, case.now - newest)
    # A single node may have nothing to do, and a node without data may be the busy one.
    complete = len(last) == len(case.nodes)
    if still_s < bound_s or not complete:
        evidence = f"something moved {age(still_s)} ago"
        return [
            Observation(subject=Subject(node=each), measured=still_s, evidence=evidence)
            for each in last
        ]
    evidence = (
        f"no output, no processor time, no storage and no traffic for {age(still_s)} on "
        f"{folded(last)}"
    )
    evidence += "".join(f"; {_stands(node, task)}" for node, task in odd[:_MOST_NAMED])
    is_sure = still_s >= case.targets.hang_s and bool(_ranks(case))
    subjects = [Subject(node=node, rank=task.rank) for node, task in odd[:_MOST_NAMED]]
    return [
        Observation(
            subject=each,
            verdict=Verdict.BAD if is_sure else Verdict.ATTENTION,
            measured=still_s,
            evidence=evidence,
        )
        for each in subjects or [Subject(node=node) for node in last]
    ]


def _ranks(case: Case) -> list[tuple[str, TaskFact]]:
    return [
        (node, each)
        for node, facts in each_facts(case)
        for each in facts.tasks
        if each.rank is not None
    ]


def _odd_ranks(case: Case) -> list[tuple[str, TaskFact]]:
    """Return ranks that are not where most are, as far as the kernel reports."""
    ranks = [(node, each) for node, each in _ranks(case) if each.waits_in or each.state]
    if len(ranks) < _FEWEST_RANKS:
        return []
    positions = Counter(_position(each) for _, each in ranks)
    common, many = positions.most_common(1)[0]
    if many * 2 <= len(ranks):
        return []
    return [(node, each) for node, each in ranks if _position(each) != common]


def _seem_to_wait(case: Case, odd: Sequence[tuple[str, TaskFact]]) -> bool:
    """Return True if all ranks of one step sleep, nearly all at one known place."""
    ranks = [each for _, each in _ranks(case)]
    few = 0 < len(odd) <= max(1, len(ranks) // _OF_MANY)
    seen = all(node in case.facts for node in case.nodes)
    # Parallel steps have ranks with the same numbers, and do not wait for each other.
    one_step = len({each.step for each in ranks}) == 1
    one_each = len({each.rank for each in ranks}) == len(ranks)
    asleep = all(each.state in _ASLEEP and each.waits_in for each in ranks)
    return few and seen and one_step and one_each and asleep


def _position(task: TaskFact) -> tuple[str, str]:
    return task.state, task.waits_in


def _stands(node: str, task: TaskFact) -> str:
    where = f"stands in {task.waits_in}" if task.waits_in else _STANDS.get(task.state, "runs")
    return f"rank {task.rank} on {node} {where}, unlike the others"
