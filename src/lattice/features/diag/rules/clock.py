"""A node with a wrong clock. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import FactKind
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    each_facts,
    findings,
    no_fact,
)

_GRAVE_S = 30.0


class ClockOffset:
    """Reads how far each node's clock is ahead of the servers'."""

    name, title, area, order = "clock", "Clocks", Area.JOB, 50
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        bound = case.targets.clock_s
        seen: list[Observation] = []
        unseen: list[MissingObservation] = []
        for node, facts in each_facts(case):
            ahead = facts.clock_ahead_s
            if ahead is None:
                unseen.append(no_fact(node, facts, FactKind.CLOCK, "its clock was not compared"))
                continue
            off = abs(ahead)
            verdict = Verdict.OK
            if off > bound:
                verdict = Verdict.BAD if off > _GRAVE_S else Verdict.ATTENTION
            where = "ahead" if ahead > 0 else "behind"
            much = f"{off:.2g}" if off < 10 else f"{off:.0f}"
            words = f"the clock of {node} is {much} s {where}"
            seen.append(
                Observation(subject=Subject(node=node), verdict=verdict, measured=off, words=words)
            )
        seen.sort(key=lambda each: each.measured or 0.0, reverse=True)
        yield from findings(
            self,
            case,
            seen,
            unseen,
            FindingTemplate(
                target=bound,
                unit="s",
                remedy="Tell the site: the node's time service is off (`chronyc tracking` on it). "
                "Times in the job's output and in its files are wrong by as much.",
                nothing="no node told facts",
            ),
        )
