"""How each card is as its node judges it, and whether it has all its PCIe lanes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lattice.domain.jobfacts import FactKind, GpuFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    card,
    each_facts,
    findings,
    no_fact,
)

_VERDICTS = {"ok": Verdict.OK, "healthy": Verdict.OK, "warning": Verdict.ATTENTION}


class GpuHealth:
    """Reads the facts of each card."""

    name, title, area = "gpu_health", "GPU health", Area.GPU
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        seen: list[Seen] = []
        unseen: list[Unseen] = []
        for node, facts in each_facts(case):
            judged = [each for each in facts.gpus if each.health or each.pcie_width is not None]
            seen += [_one(node, each) for each in judged]
            if not judged:
                unseen.append(no_fact(node, facts, FactKind.GPUS, "nobody judged the cards"))
        if seen and not any(each.verdict.is_sick for each in seen):
            seen[0] = replace(seen[0], words=_well(case))
        yield from findings(
            self,
            case,
            seen,
            unseen,
            Line(
                remedy="Tell the site, and leave the node out next time (`sbatch --exclude=NODE`).",
                nothing="no node told facts",
            ),
        )


def _well(case: Case) -> str:
    cards = [each for _, facts in each_facts(case) for each in facts.gpus]
    judged = sum(bool(each.health) for each in cards)
    lanes = {each.pcie_width for each in cards if each.pcie_width is not None}
    words = [f"{judged} cards are judged ok"] if judged else []
    words += [f"PCIe x{min(lanes)}"] if lanes else []
    return ", ".join(words)


def _one(node: str, fact: GpuFact) -> Seen:
    verdict = _VERDICTS.get(fact.health, Verdict.BAD if fact.health else Verdict.OK)
    words = f"{card(fact.uuid)} on {node}"
    words += f" is judged {fact.health}" if fact.health else ""
    words += f": {fact.words}" if fact.words else ""
    width, best = fact.pcie_width, fact.pcie_best_width
    if width is not None and best is not None:
        # An idle card lets lanes sleep on some boards; fewer than half of them is no saving.
        if width * 2 <= best and verdict is Verdict.OK:
            verdict = Verdict.ATTENTION
        words += f", PCIe x{width} of x{best}"
    subject = Subject(node=node, gpu=fact.uuid)
    return Seen(subject=subject, verdict=verdict, words=words)
