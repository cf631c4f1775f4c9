"""How each card is as its node judges it, and whether it has all its PCIe lanes. Pure.

A card that another rule tells of, because it met errors now or is held back now, is told of there,
with how it is judged: here are those of which nobody else says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from lattice.domain.jobfacts import FactKind, GpuFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.cards import Card
from lattice.features.diag.rules.gpu_errors import cards_with_errors
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    card,
    each_facts,
    findings,
    no_fact,
)
from lattice.features.diag.rules.throttle import cards_held_back

_VERDICTS = {"ok": Verdict.OK, "healthy": Verdict.OK, "warning": Verdict.ATTENTION}


class GpuHealth:
    """Reads the facts of each card."""

    name, title, area = "gpu_health", "GPU health", Area.GPU
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if case.has_gpus is False:
            return
        kept: list[tuple[str, GpuFact]] = []
        unseen: list[Unseen] = []
        elsewhere = cards_with_errors(case) | cards_held_back(case)
        for node, facts in each_facts(case):
            judged = [each for each in facts.gpus if each.health or each.pcie_width is not None]
            kept += [(node, each) for each in judged if not _is_told(node, each, elsewhere)]
            if not judged:
                unseen.append(no_fact(node, facts, FactKind.GPUS, "nobody judged the cards"))
        if elsewhere and not kept and not unseen:
            return
        seen = [_one(node, each) for node, each in kept]
        if seen and not any(each.verdict.is_sick for each in seen):
            seen[0] = replace(seen[0], words=_well([each for _, each in kept]))
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


def _is_told(node: str, fact: GpuFact, elsewhere: Collection[Card]) -> bool:
    """True if another rule says why it is judged as it is."""
    is_ok = _VERDICTS.get(fact.health) is Verdict.OK or not fact.health
    return not is_ok and (node, fact.uuid) in elsewhere


def _well(cards: Sequence[GpuFact]) -> str:
    judged = sum(bool(each.health) for each in cards)
    lanes = {each.pcie_width for each in cards if each.pcie_width is not None}
    several = "card is" if judged == 1 else "cards are"
    words = [f"{judged} {several} judged ok"] if judged else []
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
