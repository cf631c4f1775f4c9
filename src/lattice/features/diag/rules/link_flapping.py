"""A link that is up and was recently down. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lattice.base.moment import age
from lattice.domain.jobfacts import LinkFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    findings,
)
from lattice.features.diag.rules.links import counted, of_links

_RECENT_S = 600.0


class LinkFlapping:
    """Reads how often each port recently lost its carrier, and when it last changed."""

    name, title, area, order = "link_flapping", "Links steady", Area.NETWORK, 100
    explains = frozenset({"retransmits", "link_errors", "straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        judged = of_links(case, partial(_one, case))
        template = FindingTemplate(
            target=0.0,
            remedy="Tell the site: a cable or a port is loose. Leave the node out next time "
            "(`sbatch --exclude=NODE`).",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _one(case: Case, node: str, link: LinkFact) -> Judged | None:
    if not link.up:
        return None
    since = max(case.started, case.now - _RECENT_S)
    counts = counted(case, node, link)
    counted_downs = [each.downs for each in (counts, link.of_job) if each is not None]
    downs = max((each for each in counted_downs if each is not None), default=None)
    if downs is None and link.changed is None:
        return MissingObservation(node=node, reason="its ports do not say how often they were down")
    recently = link.changed is not None and link.changed >= since
    # The last change may be the port coming up; only a lost carrier is a fault.
    lost = bool(downs) and (recently or link.changed is None)
    evidence = "no link has lost its carrier of late"
    if lost:
        ago = f", last {age(case.now - link.changed)} ago" if link.changed is not None else ""
        evidence = f"{link.name} on {node} lost its carrier {downs:.0f} times{ago}"
    return Observation(
        subject=Subject(node=node, thing=link.name),
        verdict=Verdict.ATTENTION if lost else Verdict.OK,
        measured=downs,
        evidence=evidence,
    )
