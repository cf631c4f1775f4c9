"""A job without output because it is held in a buffer. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.moment import age
from lattice.domain.jobfacts import FactKind, NodeFacts
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    each_facts,
    findings,
    no_fact,
)


class BufferedOutput:
    """Reads the time of the last output, signs of work, and how Python was started."""

    name, title, area, order = "buffered_output", "Last output", Area.JOB, 40
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        judged: list[Judged] = []
        # Any node may write the job's output: the newest time counts.
        written = [facts.last_output for _, facts in each_facts(case) if facts.last_output]
        written += [
            snapshot.progress.output
            for snapshot in case.sights.values()
            if snapshot.progress is not None and snapshot.progress.output
        ]
        quiet_s = max(0.0, case.now - max([case.started, *written]))
        for node, facts in each_facts(case):
            if facts.tasks:
                judged += _judged(case, node, facts, quiet_s)
            else:
                judged.append(no_fact(node, facts, FactKind.TASKS, "it has no task of the job"))
        template = FindingTemplate(
            target=case.targets.quiet_s,
            unit="s",
            remedy="Put `export PYTHONUNBUFFERED=1` into the script (or `python -u`, and `srun "
            "--unbuffered`); `print(..., flush=True)` does for single lines.",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _judged(case: Case, node: str, facts: NodeFacts, quiet_s: float) -> Iterator[Judged]:
    buffered = [
        each
        for each in facts.tasks
        if each.python_unbuffered is False and each.output_piped is not False
    ]
    works = _works(case, node)
    quiet = quiet_s >= case.targets.quiet_s
    if quiet and buffered and works is None:
        reason = "whether the job works is not told yet"
        yield MissingObservation(node=node, reason=reason, lack=Lack.TOO_EARLY)
        return
    sick = quiet and bool(buffered) and bool(works)
    evidence = f"the job last wrote {age(quiet_s)} ago"
    if sick:
        evidence = (
            f"nothing was written for {age(quiet_s)} though the job works on {node}: its Python "
            "keeps what it prints in a buffer"
        )
    elif quiet and not buffered:
        evidence += "; its output is not held back"
    ranks = {each.rank for each in buffered} if sick else {None}
    for rank in sorted(ranks, key=lambda each: -1 if each is None else each):
        yield Observation(
            subject=Subject(node=node, rank=rank),
            verdict=Verdict.ATTENTION if sick else Verdict.OK,
            measured=quiet_s,
            evidence=evidence,
        )


def _works(case: Case, node: str) -> bool | None:
    snapshot = case.sights.get(node)
    if snapshot is None or snapshot.progress is None:
        return None
    progress = snapshot.progress
    signs = [each for each in (progress.processor, progress.storage, progress.network) if each]
    return bool(signs) and case.now - max(signs) < case.targets.hang_s
