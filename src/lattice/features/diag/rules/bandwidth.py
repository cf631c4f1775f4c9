"""What each node sends and receives against what its links can do, and which switches lie between.

Says no more than that: a link that is full is a link well used. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lattice.domain.jobfacts import FactKind, LinkFact
from lattice.domain.measured import Shown
from lattice.domain.telemetry import Coverage
from lattice.features.diag.model import Area, Case, Finding, Lack, Sense, Subject, Verdict
from lattice.features.diag.rules.linking import counted
from lattice.features.diag.rules.saying import (
    Line,
    Seen,
    Unseen,
    findings,
    folded,
    no_fact,
    shown,
    unknown,
    unseen_of,
)

_FEW = 4
_SCALES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


@dataclass(frozen=True, slots=True)
class _Moved:
    """What one node sent and received in a second, over how long, and what it could have."""

    node: str
    rate: float
    over_s: float | None
    most: float | None
    """Both ways at once; None: not all of its links tell how fast they are."""


class Bandwidth:
    """Reads what every port counted and its speed; of ports that don't count, the node's rates."""

    name, title, area = "bandwidth", "Bandwidth of a node", Area.NETWORK
    explains = frozenset[str]()

    def judge(self, case: Case) -> Iterator[Finding]:
        moved: list[_Moved] = []
        unseen: list[Unseen] = []
        for node in case.nodes:
            told = _by_ports(case, node) or _by_rates(case, node)
            if isinstance(told, _Moved):
                moved.append(told)
            elif told is not None:
                unseen.append(told)
        seen = [Seen(subject=Subject(node=each.node), measured=each.rate) for each in moved]
        if moved:
            most = [each.most for each in moved if each.most is not None]
            seen[0] = replace(
                seen[0],
                measured=fmean(each.rate for each in moved),
                target=fmean(most) if len(most) == len(moved) else None,
                words=_words(moved),
            )
        yield from findings(self, case, seen, unseen, Line(sense=Sense.OF, unit="bytes/s"))


def _by_ports(case: Case, node: str) -> _Moved | None:
    """Ports of InfiniBand and Slingshot count what the kernel's own network never sees."""
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


def _by_rates(case: Case, node: str) -> _Moved | Unseen | None:
    sight, facts = case.sights.get(node), case.facts.get(node)
    if sight is None:
        if facts is None:
            return None
        return no_fact(node, facts, FactKind.LINKS, "none of its links counts what it carries")
    sent, why = shown(sight, Shown.NETWORK_TX_BYTES)
    received, why_not = shown(sight, Shown.NETWORK_RX_BYTES)
    if not sent or not received:
        lack = why or why_not
        return unseen_of(node, lack) if lack is not None else None
    rate = sum(each.value for each in (*sent, *received))
    before = sight.before
    over_s = sight.now.time - before.time if before is not None else None
    return _Moved(node, rate, over_s, _most(facts.links) if facts is not None else None)


def _most(links: Sequence[LinkFact], *, without: set[str] | None = None) -> float | None:
    """Of all links that are up; of one that carries nothing it does not matter how fast it is."""
    speeds = [
        each.speed_bits
        for each in links
        if each.up and not (each.speed_bits is None and each.name in (without or ()))
    ]
    known = [each for each in speeds if each is not None]
    return 2 * sum(known) / 8 if known and len(known) == len(speeds) else None


def _words(moved: Sequence[_Moved]) -> str:
    if len(moved) <= _FEW:
        told = ", ".join(f"{each.node} {_rate(each.rate)}" for each in moved)
    else:
        least = min(moved, key=lambda each: each.rate)
        most = max(moved, key=lambda each: each.rate)
        told = f"from {_rate(least.rate)} ({least.node}) to {_rate(most.rate)} ({most.node})"
    over_s = max((each.over_s for each in moved if each.over_s is not None), default=None)
    window = f" over {over_s:.0f} s" if over_s is not None else ""
    unsaid = [each.node for each in moved if each.most is None]
    slower = f"; how fast the links of {folded(unsaid)} are is not told" if unsaid else ""
    return f"{told}, sent and received{window}{slower}"


def _rate(value: float) -> str:
    for size, unit in _SCALES:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B/s"


class BetweenNodes:
    """Reads nothing yet: no source tells of which node to which node a byte goes."""

    name, title, area = "between_nodes", "Bandwidth between nodes", Area.NETWORK
    explains = frozenset[str]()
    reason = "ports count what passes, not from which node to which"

    def judge(self, case: Case) -> Iterator[Finding]:
        if len(case.nodes) > 1:
            yield unknown(self, case, self.reason, Lack.NOT_OFFERED, ())


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
