"""What the rules about links share: which ports matter, and what they counted of late. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lattice.domain.jobfacts import FactKind, LinkCounts, LinkFact
from lattice.features.diag.model import Case
from lattice.features.diag.rules.saying import Seen, Unseen, each_facts, no_fact

_SHORTEST_S = 3.0


def of_links(
    case: Case, judge: Callable[[str, LinkFact], Seen | Unseen | None]
) -> tuple[list[Seen], list[Unseen]]:
    """A rule over all ports of all nodes that tell of them."""
    seen: list[Seen] = []
    unseen: list[Unseen] = []
    for node, facts in each_facts(case):
        judged = [judge(node, each) for each in facts.links]
        seen += [each for each in judged if isinstance(each, Seen)]
        lacks = [each for each in judged if isinstance(each, Unseen)]
        if lacks:
            unseen.append(lacks[0])
        elif not any(judged):
            usual = "none of its links is up" if facts.links else "it tells of no link"
            unseen.append(no_fact(node, facts, FactKind.LINKS, usual))
    return seen, unseen


def counted(case: Case, node: str, link: LinkFact) -> LinkCounts | None:
    """Since the look before; else since the job began on the node."""
    earlier = case.earlier.get(node)
    now = case.facts[node].time
    if earlier is not None and now - earlier.time >= _SHORTEST_S:
        before = next((each for each in earlier.links if each.name == link.name), None)
        if before is not None:
            return LinkCounts(
                seconds=now - earlier.time,
                rx_bytes=_more(before.rx_bytes, link.rx_bytes),
                tx_bytes=_more(before.tx_bytes, link.tx_bytes),
                packets=_more(before.packets, link.packets),
                errors=_more(before.errors, link.errors),
                waits=_more(before.waits, link.waits),
                downs=_more(before.downs, link.downs),
            )
    return link.of_job


def _more(before: float | None, now: float | None) -> float | None:
    if before is None or now is None or now < before:
        return None
    return now - before


def was_used(link: LinkFact) -> bool:
    """True if anything ever went over it: a socket without a cable is down on every node."""
    return bool(link.rx_bytes or link.tx_bytes or link.packets)


class Likes:
    """The ports of each name over all nodes: how many are up, and how fast those are."""

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
        """Of a port that is down: True if there are others of its name, and all of them are up."""
        return self._up[name] > 0 and self._up[name] == self._all[name] - 1

    def usual_speed(self, link: LinkFact) -> float | None:
        """How fast most of the others are, where there are two at least."""
        speeds = Counter(self._speeds.get(link.name, {}))
        if link.up and link.speed_bits is not None:
            speeds[link.speed_bits] -= 1
        others = sum(speeds.values())
        if others < 2:
            return None
        speed, many = speeds.most_common(1)[0]
        return speed if many * 2 > others else None


def gbit(bits: float) -> str:
    """A speed as it stands on the port: `100 Gbit/s`."""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
