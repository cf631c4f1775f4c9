"""A link that is slower than it can be, or than the site expects. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

from lattice.domain.jobfacts import LinkFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    findings,
)
from lattice.features.diag.rules.links import Likes, gbit, of_links

_NEARLY = 0.99


class LinkSpeed:
    """Compares each port's speed with the site's target, its own best, or other nodes."""

    name, title, area, order = "link_speed", "Link speed", Area.NETWORK, 110
    explains = frozenset({"straggler", "congestion"})

    def judge(self, case: Case) -> Iterator[Finding]:
        judged = of_links(case, partial(_one, case, Likes(case)))
        template = FindingTemplate(
            unit="bit/s",
            remedy="Tell the site: a cable, a port or a transceiver lets it do no better. "
            "Leave the node out next time (`sbatch --exclude=NODE`).",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _one(case: Case, likes: Likes, node: str, link: LinkFact) -> Judged | None:
    if not link.up:
        return None
    if link.speed_bits is None:
        return MissingObservation(node=node, reason="its ports do not say how fast they are")
    best = _expected(case, likes, link)
    if best is None:
        return MissingObservation(node=node, reason="nobody says how fast its ports should be")
    evidence = f"{link.name} on {node} runs at {gbit(link.speed_bits)} of {gbit(best)}"
    verdict = Verdict.OK
    if link.speed_bits < _NEARLY * best:
        verdict = Verdict.BAD if link.speed_bits * 2 <= best else Verdict.ATTENTION
    return Observation(
        subject=Subject(node=node, thing=link.name),
        verdict=verdict,
        measured=link.speed_bits,
        evidence=evidence,
    )


def _expected(case: Case, likes: Likes, link: LinkFact) -> float | None:
    """Return the site's target, else the port's own best, else the speed on most other nodes."""
    for target in case.targets.links:
        if fnmatchcase(link.name, target.name):
            return target.speed_bits
    if link.best_speed_bits is not None:
        return link.best_speed_bits
    return likes.usual_speed(link)
