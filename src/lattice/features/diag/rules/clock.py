"""A node with a wrong clock. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import FactKind, NodeFacts
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    Observation,
    each_facts,
    findings,
    largest_first,
    no_fact,
)

_GRAVE_S = 30.0


class ClockOffset:
    """Reads how far each node's clock is ahead of the servers'."""

    name, title, area, order = "clock", "Clocks", Area.JOB, 50
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        bound = case.targets.clock_s
        judged = largest_first(_one(node, facts, bound) for node, facts in each_facts(case))
        template = FindingTemplate(
            target=bound,
            unit="s",
            remedy="Tell the site: the node's time service is off (`chronyc tracking` on it). "
            "Times in the job's output and in its files are wrong by as much.",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _one(node: str, facts: NodeFacts, bound: float) -> Judged:
    ahead = facts.clock_ahead_s
    if ahead is None:
        return no_fact(node, facts, FactKind.CLOCK, "its clock was not compared")
    off = abs(ahead)
    verdict = Verdict.OK
    if off > bound:
        verdict = Verdict.BAD if off > _GRAVE_S else Verdict.ATTENTION
    where = "ahead" if ahead > 0 else "behind"
    much = f"{off:.2g}" if off < 10 else f"{off:.0f}"
    evidence = f"the clock of {node} is {much} s {where}"
    subject = Subject(node=node)
    return Observation(subject=subject, verdict=verdict, measured=off, evidence=evidence)
