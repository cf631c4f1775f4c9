"""What each node sends and receives against what its links can do, and which switches lie between.

Says no more than that: a link that is full is a link well used. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.measured import Shown
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Sense, Subject, Verdict
from lattice.features.diag.rules.saying import (
    PROBE,
    Line,
    Seen,
    Unseen,
    each_sight,
    findings,
    shown,
    unseen_of,
)


class Bandwidth:
    """Reads the rates of the node or the job, and the speed of the fastest link that is up."""

    name, title, area = "bandwidth", "Bandwidth of a node", Area.NETWORK
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        seen: list[Seen] = []
        unseen: list[Unseen] = []
        for node, sight in each_sight(case):
            sent, why = shown(sight, Shown.NETWORK_TX_BYTES)
            received, _ = shown(sight, Shown.NETWORK_RX_BYTES)
            if not sent or not received:
                if why is not None:
                    unseen.append(unseen_of(node, why))
                continue
            rate = sum(each.value for each in (*sent, *received))
            seen.append(Seen(subject=Subject(node=node), measured=rate))
        speeds = [
            link.speed_bits
            for facts in case.facts.values()
            for link in facts.links
            if link.up and link.speed_bits is not None
        ]
        if seen:
            rates = [each.measured or 0.0 for each in seen]
            words = f"sent and received on average over {len(rates)} nodes"
            seen[0] = Seen(subject=seen[0].subject, measured=sum(rates) / len(rates), words=words)
        # Both ways at once.
        target = 2 * max(speeds) / 8 if speeds else None
        line = Line(target=target, sense=Sense.OF, unit="bytes/s", source=PROBE)
        yield from findings(self, case, seen, unseen, line)


class GroupSpan:
    """Reads Slurm's topology."""

    name, title, area = "group_span", "Switch groups", Area.NETWORK
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        groups = sorted({each for each in case.groups.values() if each})
        if not groups:
            # The site configured no topology: there is nothing to tell.
            return
        named = ", ".join(groups[:8]) + (", …" if len(groups) > 8 else "")
        yield Finding(
            rule=self.name,
            title=self.title,
            area=self.area,
            verdict=Verdict.OK,
            subjects=tuple(Subject(thing=each) for each in groups),
            measured=float(len(groups)),
            source="slurm_topology",
            evidence=f"spans {len(groups)} ({named})",
            covered=Coverage(len(case.groups), len(case.nodes)),
        )
