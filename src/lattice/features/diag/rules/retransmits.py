"""Packets that had to be sent again because they were lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.domain.jobfacts import FactKind, TransportFact
from lattice.domain.measured import FIRST_LOOK
from lattice.domain.node_snapshot import NodeSnapshot
from lattice.features.diag.model import Area, Case, Finding, Lack, Subject, Verdict
from lattice.features.diag.rules.saying import (
    FindingTemplate,
    MissingObservation,
    Observation,
    each_facts,
    each_sight,
    findings,
    grown,
    no_fact,
)

_FEWEST = 20.0
_GRAVE_PERCENT = 5.0
_SHORTEST_S = 3.0


class Retransmits:
    """Reads TCP's counts for the node and the job, between two looks or since the job began."""

    name, title, area, order = "retransmits", "TCP sent again", Area.NETWORK, 130
    explains = frozenset({"straggler"})

    def judge(self, case: Case) -> Iterator[Finding]:
        seen: list[Observation] = []
        unseen: list[MissingObservation] = []
        bound = case.targets.retransmit_percent
        for node, sight in each_sight(case):
            told = _between(node, sight, bound)
            if told is not None:
                seen.append(told)
        for node, facts in each_facts(case):
            transport = _lately(case, node)
            if transport is None or transport.retransmits is None:
                reason = "its TCP does not say what it sent again"
                unseen.append(no_fact(node, facts, FactKind.TRANSPORT, reason))
            elif transport.seconds is None:
                # The count since the node's boot is mostly not this job's.
                unseen.append(MissingObservation(node=node, reason=FIRST_LOOK, lack=Lack.TOO_EARLY))
            else:
                sent = transport.sent_segments
                seen.append(_one(node, "TCP", transport.retransmits, sent, bound))
        yield from findings(
            self,
            case,
            seen,
            unseen,
            FindingTemplate(
                target=bound,
                unit="%",
                remedy="Tell the site: packets are dropped between these nodes. "
                "`lattice diag ID --network` shows the links; `sbatch --switches=1` keeps a job "
                "below one switch.",
            ),
        )


def _lately(case: Case, node: str) -> TransportFact | None:
    now, earlier = case.facts[node], case.earlier.get(node)
    before = earlier.transport if earlier is not None else None
    if now.transport is None or earlier is None or before is None:
        return now.transport
    again, sent = now.transport.retransmits, now.transport.sent_segments
    if now.time - earlier.time < _SHORTEST_S or again is None or before.retransmits is None:
        return now.transport
    if sent is None or before.sent_segments is None or again < before.retransmits:
        return now.transport
    if sent <= before.sent_segments:
        return now.transport
    return TransportFact(
        seconds=now.time - earlier.time,
        sent_segments=sent - before.sent_segments,
        retransmits=again - before.retransmits,
    )


def _between(node: str, sight: NodeSnapshot, bound: float) -> Observation | None:
    """Use the job's own counts if they exist, else the node's; packets from the same scope."""
    packets = {each.label("scope"): each for each in sight.now.of("network_packets_total")}
    for each in sight.now.of("tcp_retransmits_total"):
        scope = each.label("scope")
        again = grown(sight, each)
        sent = grown(sight, packets[scope]) if scope in packets else None
        if again is not None and sent is not None:
            # Packets are counted in both directions; about half of them were sent.
            whose = "the job's TCP" if scope == "job" else "TCP"
            return _one(node, whose, again, sent / 2, bound)
    return None


def _one(node: str, whose: str, again: float, sent: float | None, bound: float) -> Observation:
    share = min(100.0, 100.0 * again / sent) if sent else 0.0
    sick = again >= _FEWEST and share > bound
    words = f"{whose} on {node} sent {again:.0f} of {sent or 0:.0f} segments again ({share:.2g} %)"
    grave = share > _GRAVE_PERCENT * bound
    return Observation(
        subject=Subject(node=node),
        verdict=(Verdict.BAD if grave else Verdict.ATTENTION) if sick else Verdict.OK,
        measured=share,
        words=words if again else "nothing had to be sent again",
    )
