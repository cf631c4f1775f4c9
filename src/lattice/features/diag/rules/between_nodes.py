"""What the job's nodes send each other by TCP, against the speed of their links. Pure.

It is only information: a full link is well used. What RDMA moves passes the kernel by and is not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.counters import MOST_PEERS
from lattice.domain.jobfacts import FactKind, LinkKind, NodeFacts, PeerFact
from lattice.features.diag.model import Area, Case, Finding, Lack, Sense, Subject
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    MissingObservation,
    Observation,
    each_facts,
    earlier_facts,
    findings,
    format_rate,
    increase,
    no_fact,
)

_FEW = 3
_TOO_EARLY = "the job has just begun here; ask again in a few seconds"
_SHORTEST_S = 3.0
_RDMA = frozenset({LinkKind.INFINIBAND, LinkKind.SLINGSHOT})


@dataclass(frozen=True, slots=True)
class _Moved:
    """Bytes per second that one node sends to another."""

    sender: str
    receiver: str
    rate: float

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver} {format_rate(self.rate)}"


class BetweenNodes:
    """Reads what each node's sockets of the job moved, by the address at their other end."""

    name, title, area, order = "between_nodes", "Bandwidth between nodes", Area.NETWORK, 160
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        if len(case.nodes) < 2:
            return
        owners = _owners(case)
        moved: dict[tuple[str, str], float] = {}
        seen: list[Observation | MissingObservation] = []
        for node, facts in each_facts(case):
            missing = _missing(case, node, facts)
            if missing is not None:
                seen.append(missing)
                continue
            seen.append(Observation(subject=Subject(node=node)))
            _add(moved, case, node, owners)
        known = [each for each in seen if isinstance(each, Observation)]
        rest = [each for each in seen if isinstance(each, MissingObservation)]
        if known:
            known[0] = _line(case, known[0].subject.node, moved)
        template = FindingTemplate(sense=Sense.OF, unit="bytes/s")
        yield from findings(self, case, [*known, *rest], template)


def _owners(case: Case) -> Mapping[str, str]:
    """Return the node of each address. One that several nodes have, such as a bridge, is none's."""
    count = Counter(each for _, facts in each_facts(case) for each in set(facts.addresses))
    return {
        address: node
        for node, facts in each_facts(case)
        for address in facts.addresses
        if count[address] == 1
    }


def _missing(case: Case, node: str, facts: NodeFacts) -> MissingObservation | None:
    if facts.absence(FactKind.PEERS) is not None or not facts.addresses:
        return no_fact(node, facts, FactKind.PEERS, "its agent does not tell it")
    if _period(case, node) is None:
        return MissingObservation(node=node, reason=_TOO_EARLY, lack=Lack.TOO_EARLY)
    return None


def _period(case: Case, node: str) -> tuple[float, Sequence[PeerFact]] | None:
    """Return for how many seconds rates are computed, and the counts at their beginning.

    Without an earlier reading that is the whole job: the counts began with it.
    """
    time, earlier = case.facts[node].time, earlier_facts(case, node)
    if earlier is not None and earlier.absence(FactKind.PEERS) is None:
        return time - earlier.time, earlier.peers
    started = case.started
    if time - started < _SHORTEST_S:
        return None
    return time - started, ()


def _peers(case: Case, node: str) -> Sequence[PeerFact]:
    return case.facts[node].peers


def _add(
    moved: dict[tuple[str, str], float], case: Case, node: str, owners: Mapping[str, str]
) -> None:
    """Add what this node sent, and what it got from nodes that do not tell what they sent."""
    period = _period(case, node)
    assert period is not None
    over_s, first_peers = period
    before = {each.address: each for each in first_peers}
    for each in _peers(case, node):
        other = owners.get(each.address, node)
        if other == node:
            continue
        first = before.get(each.address)
        if first is None and len(first_peers) >= MOST_PEERS:
            continue  # it may have been one of those that were left out
        sent = increase(first.sent_bytes if first else 0.0, each.sent_bytes)
        received = increase(first.received_bytes if first else 0.0, each.received_bytes)
        if sent is not None:
            moved[node, other] = moved.get((node, other), 0.0) + sent / over_s
        if received is not None and _missing(case, other, case.facts[other]) is not None:
            moved[other, node] = moved.get((other, node), 0.0) + received / over_s


def _line(case: Case, node: str, moved: Mapping[tuple[str, str], float]) -> Observation:
    pairs = [_Moved(*pair, rate) for pair, rate in moved.items() if rate]
    pairs.sort(key=lambda each: (-each.rate, each.sender, each.receiver))
    by_rdma = any(link.up and link.kind in _RDMA for _, facts in each_facts(case)
                  for link in facts.links)  # fmt: skip
    counted = "by TCP, without RDMA" if by_rdma else "by TCP"
    if any(earlier_facts(case, each) is None for each, _ in each_facts(case)):
        counted += ", since the job began"
    if not pairs:
        return Observation(
            subject=Subject(node=node),
            measured=0.0,
            evidence=f"its nodes send each other nothing just now ({counted}; eBPF)",
        )
    most = pairs[0]
    if len(pairs) <= _FEW:
        rates = ", ".join(map(str, pairs))
    else:
        rates = f"{most} is the most of {len(pairs)} directions"
    speed = _link_speed(case, most)
    links = f"; links {format_rate(speed)}" if speed is not None else ""
    return Observation(
        subject=Subject(node=node),
        measured=most.rate,
        target=speed,
        evidence=f"{rates} ({counted}; eBPF{links})",
    )


def _link_speed(case: Case, pair: _Moved) -> float | None:
    """Return bytes per second of the slower end's links together; None if not all are known."""
    ends = []
    for node in (pair.sender, pair.receiver):
        speeds = [each.speed_bits for each in case.facts[node].links if each.up]
        if not speeds or None in speeds:
            return None
        ends.append(sum(each for each in speeds if each is not None) / 8)
    return min(ends)
