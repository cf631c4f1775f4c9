"""Shared by rules about links: relevant ports and their recent counts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lattice.domain.jobfacts import FactKind, LinkCounts, LinkFact
from lattice.features.diag.model import Case
from lattice.features.diag.rules.findings import (
    Judged,
    MissingObservation,
    Observation,
    each_facts,
    earlier_facts,
    increase,
    no_fact,
)


def of_links(case: Case, judge: Callable[[str, LinkFact], Judged | None]) -> list[Judged]:
    """Apply a rule to all ports of all nodes with facts."""
    found: list[Judged] = []
    for node, facts in each_facts(case):
        judged = [judge(node, each) for each in facts.links]
        found += [each for each in judged if isinstance(each, Observation)]
        lacks = [each for each in judged if isinstance(each, MissingObservation)]
        found += lacks[:1]
        if not any(judged):
            usual = "none of its links is up" if facts.links else "it tells of no link"
            found.append(no_fact(node, facts, FactKind.LINKS, usual))
    return found


def counted(case: Case, node: str, link: LinkFact) -> LinkCounts | None:
    """Return the counts since the last look, else since the job began on the node."""
    earlier = earlier_facts(case, node)
    links = earlier.links if earlier is not None else ()
    before = next((each for each in links if each.name == link.name), None)
    if earlier is None or before is None:
        return link.of_job
    return LinkCounts(
        seconds=case.facts[node].time - earlier.time,
        rx_bytes=increase(before.rx_bytes, link.rx_bytes),
        tx_bytes=increase(before.tx_bytes, link.tx_bytes),
        packets=increase(before.packets, link.packets),
        errors=increase(before.errors, link.errors),
        waits=increase(before.waits, link.waits),
        downs=increase(before.downs, link.downs),
    )


def was_used(link: LinkFact) -> bool:
    """Return True if the link has ever carried traffic; an unused socket is always down."""
    return bool(link.rx_bytes or link.tx_bytes or link.packets)


class Likes:
    """The ports of each name over all nodes: how many are up, and their speeds."""

    def __init__(self, case: Case) -> None:
        self._all: Counter[str] = Counter()
        self._up: Counter[str] = Counter()
        self._speeds: dict[str, Counter[float]] = {}
        for _, facts in each_facts(case):
            for each in facts.links:
                self._all[each.name] += 1
                self._up[each.name] += each.up
                if each.up and each.speed_bits is not None:
                    self._speeds.setdefault(each.name, Counter())[each.speed_bits] += 1

    def all_others_up(self, name: str) -> bool:
        """For a port that is down: return True if others of its name exist and all are up."""
        return self._up[name] > 0 and self._up[name] == self._all[name] - 1

    def usual_speed(self, link: LinkFact) -> float | None:
        """Return the speed of most others, if there are at least two."""
        speeds = Counter(self._speeds.get(link.name, {}))
        if link.up and link.speed_bits is not None:
            speeds[link.speed_bits] -= 1
        others = sum(speeds.values())
        if others < 2:
            return None
        speed, many = speeds.most_common(1)[0]
        return speed if many * 2 > others else None


def gbit(bits: float) -> str:
    """Format a speed: `100 Gbit/s`."""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
