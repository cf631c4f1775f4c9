"""A link that is down unexpectedly. Pure.

Many nodes have ports without a cable. A port counts if it went down while the job ran, or if it is
up on the job's other nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lattice.base.moment import age
from lattice.domain.jobfacts import LinkFact
from lattice.features.diag.model import Area, Case, Finding, Subject, Verdict
from lattice.features.diag.rules.findings import FindingTemplate, Observation, findings
from lattice.features.diag.rules.links import Likes, of_links, was_used


class LinkDown:
    """Reads each port's state, when it last changed, and the same port on other nodes."""

    name, title, area, order = "link_down", "Links up", Area.NETWORK, 90
    explains = frozenset(
        {"job_hang", "gpu_hang", "retransmits", "link_flapping", "straggler", "hung_mount"}
    )

    def judge(self, case: Case) -> Iterator[Finding]:
        judged = of_links(case, partial(_one, case, Likes(case)))
        template = FindingTemplate(
            remedy="Tell the site: a cable, a port or a switch is at fault. Leave the node out "
            "next time (`sbatch --exclude=NODE`).",
            nothing="no node told facts",
        )
        yield from findings(self, case, judged, template)


def _one(case: Case, likes: Likes, node: str, link: LinkFact) -> Observation | None:
    subject = Subject(node=node, thing=link.name)
    if link.up:
        return Observation(subject=subject, evidence="every link that is used is up")
    in_job = link.changed is not None and link.changed >= case.started
    in_job = in_job or bool(link.of_job is not None and link.of_job.downs)
    alone = likes.all_others_up(link.name)
    # Without data from the job's start: a port that was used has a cable.
    unseen = link.changed is None and link.of_job is None and was_used(link) and link.downs
    if not (in_job or alone or unseen):
        return None
    since = f" since {age(max(0.0, case.now - link.changed))}" if link.changed is not None else ""
    evidence = f"{link.name} on {node} is down{since}"
    evidence += ", and up on the other nodes" if alone else ""
    verdict = Verdict.BAD if in_job else Verdict.ATTENTION
    return Observation(subject=subject, verdict=verdict, evidence=evidence)
