"""The health of each GPU as its node judges it, and its PCIe lanes. Pure.

A GPU with current errors or throttling is reported by that rule, with its health. This rule reports
the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from lattice.domain.jobfacts import FactKind, GpuFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    Card,
    FindingTemplate,
    MissingObservation,
    Observation,
    card,
    each_facts,
    findings,
    no_fact,
)
from lattice.features.diag.rules.gpu_errors import cards_with_errors
from lattice.features.diag.rules.throttle import cards_held_back

_VERDICTS = {"ok": Verdict.OK, "healthy": Verdict.OK, "warning": Verdict.ATTENTION}


class GpuHealth:
    """Reads the facts of each GPU."""

    name, title, area, order = "gpu_health", "GPU health", Area.GPU, 220
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        shown: list[tuple[str, GpuFact]] = []
        unseen: list[MissingObservation] = []
        elsewhere = cards_with_errors(case) | cards_held_back(case)
        for node, facts in each_facts(case):
            judged = [each for each in facts.gpus if each.health or each.pcie_width is not None]
            shown += [(node, each) for each in judged if not _is_reported(node, each, elsewhere)]
            if not judged:
                unseen.append(no_fact(node, facts, FactKind.GPUS, "nobody judged the cards"))
        if elsewhere and not shown and not unseen:
            return
        seen = [_one(node, each) for node, each in shown]
        if seen and not any(each.verdict.is_sick for each in seen):
            seen[0] = replace(seen[0], evidence=_well([each for _, each in shown]))
        template = FindingTemplate(
            remedy="Tell the site, and leave the node out next time (`sbatch --exclude=NODE`).",
            nothing="no node told facts",
        )
        yield from findings(self, case, [*seen, *unseen], template)


def _is_reported(node: str, fact: GpuFact, elsewhere: Collection[Card]) -> bool:
    """Return True if another rule reports the cause."""
    is_ok = _VERDICTS.get(fact.health) is Verdict.OK or not fact.health
    return not is_ok and (node, fact.uuid) in elsewhere


def _well(cards: Sequence[GpuFact]) -> str:
    judged = sum(bool(each.health) for each in cards)
    lanes = {each.pcie_width for each in cards if each.pcie_width is not None}
    several = "card is" if judged == 1 else "cards are"
    parts = [f"{judged} {several} judged ok"] if judged else []
    parts += [f"PCIe x{min(lanes)}"] if lanes else []
    return ", ".join(parts)


def _one(node: str, fact: GpuFact) -> Observation:
    verdict = _VERDICTS.get(fact.health, Verdict.BAD if fact.health else Verdict.OK)
    evidence = f"{card(fact.uuid)} on {node}"
    evidence += f" is judged {fact.health}" if fact.health else ""
    evidence += f": {fact.words}" if fact.words else ""
    width, best = fact.pcie_width, fact.pcie_best_width
    if width is not None and best is not None:
        # On some boards an idle GPU powers lanes down, but not to half or less.
        if width * 2 <= best and verdict is Verdict.OK:
            verdict = Verdict.ATTENTION
        evidence += f", PCIe x{width} of x{best}"
    subject = Subject(node=node, gpu=fact.uuid)
    return Observation(subject=subject, verdict=verdict, evidence=evidence)
