"""Packets that had to be sent again because they were lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import FactKind, TransportFact
from lattice.domain.measured import FIRST_READING
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    Judged,
    MissingObservation,
    Observation,
    each_facts,
    each_snapshot,
    earlier_facts,
    findings,
    grown,
    increase,
    no_fact,
)

_FEWEST = 20.0
_GRAVE_FACTOR = 5.0
"""A share this many times above its bound is bad."""


class Retransmits:
    """Reads TCP's counts for the node and the job, between two looks or since the job began."""

    name, title, area, order = "retransmits", "TCP sent again", Area.NETWORK, 130
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        bound = case.targets.retransmit_percent
        judged: list[Judged] = [
            between
            for node, snapshot in each_snapshot(case)
            if (between := _between(node, snapshot, bound)) is not None
        ]
        for node, facts in each_facts(case):
            transport = _lately(case, node)
            if transport is None or transport.retransmits is None:
                reason = "its TCP does not say what it sent again"
                judged.append(no_fact(node, facts, FactKind.TRANSPORT, reason))
            elif transport.seconds is None:
                # The count since the node's boot is mostly not this job's.
                judged.append(
                    MissingObservation(node=node, reason=FIRST_READING, lack=Lack.TOO_EARLY)
                )
            else:
                sent = transport.sent_segments
                judged.append(_one(node, "TCP", transport.retransmits, sent, bound))
        template = FindingTemplate(
            target=bound,
            unit="%",
            remedy="Tell the site: packets are dropped between these nodes. "
            "`lattice diag ID --network` shows the links; `sbatch --switches=1` keeps a job "
            "below one switch.",
        )
        yield from findings(self, case, judged, template)


def _lately(case: Case, node: str) -> TransportFact | None:
    """Return the counts since the earlier facts, or without those the node's own."""
    now, earlier = case.facts[node], earlier_facts(case, node)
    latest, before = now.transport, earlier.transport if earlier is not None else None
    if earlier is None or latest is None or before is None:
        return latest
    sent = increase(before.sent_segments, latest.sent_segments)
    again = increase(before.retransmits, latest.retransmits)
    if not sent or again is None:
        return latest
    return TransportFact(seconds=now.time - earlier.time, sent_segments=sent, retransmits=again)


def _between(node: str, snapshot: NodeSnapshot, bound: float) -> Observation | None:
    """Use the job's own counts if they exist, else the node's; packets from the same scope."""
    packets = {each.label("scope"): each for each in snapshot.now.of("network_packets_total")}
    for each in snapshot.now.of("tcp_retransmits_total"):
        scope = each.label("scope")
        again = grown(snapshot, each)
        sent = grown(snapshot, packets[scope]) if scope in packets else None
        if again is not None and sent is not None:
            # Packets are counted in both directions; about half of them were sent.
            counter = "the job's TCP" if scope == "job" else "TCP"
            return _one(node, counter, again, sent / 2, bound)
    return None


def _one(node: str, counter: str, again: float, sent: float | None, bound: float) -> Observation:
    share = min(100.0, 100.0 * again / sent) if sent else 0.0
    sick = again >= _FEWEST and share > bound
    evidence = (
        f"{counter} on {node} sent {again:.0f} of {sent or 0:.0f} segments again ({share:.2g} %)"
    )
    grave = share > _GRAVE_FACTOR * bound
    return Observation(
        subject=Subject(node=node),
        verdict=(Verdict.BAD if grave else Verdict.ATTENTION) if sick else Verdict.OK,
        measured=share,
        evidence=evidence if again else "nothing had to be sent again",
    )
