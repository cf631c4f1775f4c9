"""Which replica to dial and when. Pure, except for randomness.

Each node has its own order of the replicas. So links spread evenly, and a dead replica's agents
spread over all others. The first dial after a loss has a random delay, so that thousands of agents
don't dial at once. Each round without success doubles the backoff, up to 30 s.

A standby connection needs no handshake, so its delay is short. It is made at leisure: the agents
that have just lost their links come first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random

FIRST_S = 1.0
PATIENCE_S = 15.0
LONGEST_S = 30.0
_MOST_DOUBLED = 10
"""The backoff is at its longest long before; servers may be away for days."""
STANDBY_FIRST_S = 0.2
STANDBY_PATIENCE_S = 5.0
STANDBY_WITHIN_S = 20.0


def preference(node: str, addresses: Iterable[str]) -> list[str]:
    """The replicas in this node's own order (rendezvous hashing)."""

    def rank(address: str) -> bytes:
        return hashlib.sha256(f"{node}\n{address}".encode()).digest()

    return sorted(dict.fromkeys(addresses), key=rank)


class Redial:
    """One node's backoff. `given` is configured; `set_replicas` sets what replicas report."""

    def __init__(self, node: str, given: Iterable[str], chance: Random) -> None:
        self._node = node
        self._given = tuple(dict.fromkeys(given))
        if not self._given:
            raise ValueError("no server to dial")
        self._order = preference(node, self._given)
        self._chance = chance
        self._fruitless = 0
        self._lost: list[str] = []
        """Replicas that failed since the last failed round, the last one at the end."""

    def set_replicas(self, addresses: Iterable[str]) -> None:
        """Set the addresses of the replicas, as one of them reported."""
        self._order = preference(self._node, (*addresses, *self._given))

    def round(self) -> list[str]:
        """The addresses to try now, in order; those just lost come last."""
        return [each for each in self._order if each not in self._lost] + [
            each for each in self._lost if each in self._order
        ]

    def others(self, address: str) -> list[str]:
        """Every other address, in the order of `round`."""
        return [each for each in self.round() if each != address]

    def linked(self, address: str) -> None:
        """A dial worked: reset the backoff."""
        self._fruitless = 0
        self._lost = [each for each in self._lost if each != address]

    def lost(self, address: str) -> None:
        """An open link is lost, or a standby connection did not accept one."""
        self._lost = [each for each in self._lost if each != address and each in self._order]
        self._lost.append(address)

    def nobody(self) -> None:
        """A whole round had no success."""
        self._fruitless = min(self._fruitless + 1, _MOST_DOUBLED)
        self._lost.clear()

    @property
    def patience_s(self) -> float:
        """How long a replica may take to accept the link.

        The agent should leave a frozen replica soon. When thousands dial at once all replicas are
        slow, and early retries make that worse. So the limit grows with each failed round.
        """
        return min(LONGEST_S, PATIENCE_S * 2.0**self._fruitless)

    def standby_patience_s(self, address: str) -> float:
        """How long the replica of a standby connection may take to accept the link.

        The time is short while another replica is left to try. If none is, leaving would only add
        a handshake to a replica that is busy with thousands of links.
        """
        others = (each for each in self.others(address) if each not in self._lost)
        return STANDBY_PATIENCE_S if any(others) else self.patience_s

    def standby_wait_s(self) -> float:
        """How long to wait before a link is opened on a standby connection."""
        return self._chance.uniform(0.0, STANDBY_FIRST_S)

    def standby_delay_s(self) -> float:
        """How long to wait before a standby connection is made."""
        return self._chance.uniform(0.0, STANDBY_WITHIN_S)

    def wait_s(self) -> float:
        """How long to wait before the next round."""
        if not self._fruitless:
            return self._chance.uniform(0.0, FIRST_S)
        longest = min(LONGEST_S, FIRST_S * 2.0**self._fruitless)
        return self._chance.uniform(longest / 2, longest)

    def scout_s(self, before_s: float, longest_s: float) -> float:
        """How long to wait until other replicas are tried again, after a failed try."""
        return min(before_s * self._chance.uniform(1.5, 2.5), longest_s)
