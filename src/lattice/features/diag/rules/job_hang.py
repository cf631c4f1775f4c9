"""A job that does not get on at all: nothing moves on any of its nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lattice.base.moment import age
from lattice.domain.jobfacts import TaskFact
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    each_facts,
    each_sight,
    findings,
    folded,
)

_STANDS = {"D": "waits for storage or a device", "T": "is stopped", "Z": "has ended"}


class JobHang:
    """Reads each node's signs of progress, and what state the kernel says its ranks are in."""

    name, title, area = "job_hang", "Last sign of progress", Area.JOB
    explains = frozenset({"gpu_idle", "straggler", "buffered_output", "data_loader"})

    def judge(self, case: Case) -> Iterator[Finding]:
        unseen: list[Unseen] = []
        last: dict[str, float] = {}
        for node, sight in each_sight(case):
            moved = sight.progress.last if sight.progress is not None else None
            if moved is not None:
                last[node] = moved
            elif case.now - case.started > case.targets.hang_s and sight.progress is not None:
                # It was watched, and nothing moved since the beginning.
                last[node] = case.started
            else:
                reason = "the node does not tell yet whether the job gets on"
                unseen.append(Unseen(node=node, reason=reason, lack=Lack.TOO_EARLY))
        line = Line(
            target=case.targets.hang_s,
            unit="s",
            remedy="`lattice diag ID --stacks` shows where every rank stands. If one has died or "
            "waits for ever, `scancel` and submit again from the last checkpoint.",
        )
        yield from findings(self, case, _judged(case, last), unseen, line)


def _judged(case: Case, last: dict[str, float]) -> list[Seen]:
    if not last:
        return []
    newest = max(last.values())
    still_s = max(0.0, case.now - newest)
    # A node alone may well have nothing to do; and one that tells nothing may be the busy one.
    complete = len(last) == len(case.nodes)
    if still_s < case.targets.hang_s or not complete:
        words = f"something moved {age(still_s)} ago"
        return [Seen(subject=Subject(node=each), measured=still_s, words=words) for each in last]
    odd = _odd_ranks(case)
    has_ranks = any(each.rank is not None for _, facts in each_facts(case) for each in facts.tasks)
    words = (
        f"no output, no processor time, no storage and no traffic for {age(still_s)} on "
        f"{folded(last)}"
    )
    words += "".join(f"; {_stands(node, task)}" for node, task in odd)
    subjects = [Subject(node=node, rank=task.rank) for node, task in odd]
    return [
        Seen(
            subject=each,
            verdict=Verdict.BAD if has_ranks else Verdict.ATTENTION,
            measured=still_s,
            words=words,
        )
        for each in subjects or [Subject(node=node) for node in last]
    ]


def _odd_ranks(case: Case) -> list[tuple[str, TaskFact]]:
    """Ranks that are not where most are: as far as the kernel tells."""
    ranks = [
        (node, each)
        for node, facts in each_facts(case)
        for each in facts.tasks
        if each.rank is not None and (each.waits_in or each.state)
    ]
    if len(ranks) < 3:
        return []
    places = Counter(_place(each) for _, each in ranks)
    common, many = places.most_common(1)[0]
    if many * 2 <= len(ranks):
        return []
    return [(node, each) for node, each in ranks if _place(each) != common][:8]


def _place(task: TaskFact) -> tuple[str, str]:
    return task.state, task.waits_in


def _stands(node: str, task: TaskFact) -> str:
    where = f"stands in {task.waits_in}" if task.waits_in else _STANDS.get(task.state, "runs")
    return f"rank {task.rank} on {node} {where}, unlike the others"
