"""The traffic of each node, compared with the capacity of its links. Pure.

It is only information: a full link is well used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lattice.domain.jobfacts import FactKind, LinkFact
from lattice.domain.measured import Shown
from lattice.features.diag.model import Area, Case, Finding, Sense, Subject
from lattice.features.diag.rules.findings import (
    FindingTemplate,
    MissingObservation,
    Observation,
    findings,
    folded,
    format_rate,
    no_fact,
    shown,
    unseen_of,
)
from lattice.features.diag.rules.links import counted

_FEW = 4


@dataclass(frozen=True, slots=True)
class _Moved:
    """The traffic of one node per second, its period, and the capacity."""

    node: str
    rate: float
    over_s: float | None
    most: float | None
    """In both directions; None if the speed of a link is unknown."""


class Bandwidth:
    """Reads the counters and speed of every port; for ports without counters, the node's rates."""

    name, title, area, order = "bandwidth", "Bandwidth of a node", Area.NETWORK, 150
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        found = [_by_ports(case, node) or _by_rates(case, node) for node in case.nodes]
        moved = [each for each in found if isinstance(each, _Moved)]
        unseen = [each for each in found if isinstance(each, MissingObservation)]
        seen = [Observation(subject=Subject(node=each.node), measured=each.rate) for each in moved]
        if moved:
            most = [each.most for each in moved if each.most is not None]
            seen[0] = replace(
                seen[0],
                measured=fmean(each.rate for each in moved),
                target=fmean(most) if len(most) == len(moved) else None,
                evidence=_evidence(moved),
            )
        template = FindingTemplate(sense=Sense.OF, unit="bytes/s")
        yield from findings(self, case, [*seen, *unseen], template)


def _by_ports(case: Case, node: str) -> _Moved | None:
    """InfiniBand and Slingshot ports count traffic that bypasses the kernel's network stack."""
    facts = case.facts.get(node)
    rates: dict[str, float] = {}
    over_s = 0.0
    for link in facts.links if facts is not None else ():
        counts = counted(case, node, link) if link.up else None
        if counts is None or counts.rx_bytes is None or counts.tx_bytes is None:
            continue
        if counts.seconds > 0:
            rates[link.name] = (counts.rx_bytes + counts.tx_bytes) / counts.seconds
            over_s = counts.seconds
    if facts is None or not rates:
        return None
    idle = {name for name, rate in rates.items() if not rate}
    return _Moved(node, sum(rates.values()), over_s, _most(facts.links, without=idle))


def _by_rates(case: Case, node: str) -> _Moved | MissingObservation | None:
    snapshot, facts = case.sights.get(node), case.facts.get(node)
    if snapshot is None:
        if facts is None:
            return None
        return no_fact(node, facts, FactKind.LINKS, "none of its links counts what it carries")
    sent, why = shown(snapshot, Shown.NETWORK_TX_BYTES)
    received, why_not = shown(snapshot, Shown.NETWORK_RX_BYTES)
    if not sent or not received:
        lack = why or why_not
        return unseen_of(node, lack) if lack is not None else None
    rate = sum(each.value for each in (*sent, *received))
    before = snapshot.before
    over_s = snapshot.now.time - before.time if before is not None else None
    return _Moved(node, rate, over_s, _most(facts.links) if facts is not None else None)


def _most(links: Sequence[LinkFact], *, without: set[str] | None = None) -> float | None:
    """Return the capacity of all links that are up. An idle link needs no known speed."""
    speeds = [
        each.speed_bits
        for each in links
        if each.up and not (each.speed_bits is None and each.name in (without or ()))
    ]
    known = [each for each in speeds if each is not None]
    return 2 * sum(known) / 8 if known and len(known) == len(speeds) else None


def _evidence(moved: Sequence[_Moved]) -> str:
    if len(moved) <= _FEW:
        rates = ", ".join(f"{each.node} {format_rate(each.rate)}" for each in moved)
    else:
        least = min(moved, key=lambda each: each.rate)
        most = max(moved, key=lambda each: each.rate)
        lowest, highest = format_rate(least.rate), format_rate(most.rate)
        rates = f"from {lowest} ({least.node}) to {highest} ({most.node})"
    over_s = max((each.over_s for each in moved if each.over_s is not None), default=None)
    window = f" over {over_s:.0f} s" if over_s is not None else ""
    unsaid = [each.node for each in moved if each.most is None]
    slower = f"; how fast the links of {folded(unsaid)} are is not told" if unsaid else ""
    return f"{rates}, sent and received{window}{slower}"
