"""Which replica to dial and when. Pure, except for randomness.

Each node has its own order of the replicas. So links spread evenly, and a dead replica's agents
spread over all others. The first dial after a loss has a random delay, so that thousands of agents
don't dial at once. Each round without success doubles the backoff, up to 30 s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random

FIRST_S = 1.0
PATIENCE_S = 15.0
LONGEST_S = 30.0


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
        self._reported: tuple[str, ...] = ()
        self._chance = chance
        self._fruitless = 0
        self._left = ""

    def set_replicas(self, addresses: Iterable[str]) -> None:
        """Set the addresses of the replicas, as one of them reported."""
        self._reported = tuple(dict.fromkeys(addresses))

    def round(self) -> list[str]:
        """The addresses to try now, in order; the one just lost comes last."""
        order = preference(self._node, (*self._reported, *self._given))
        return sorted(order, key=lambda address: address == self._left)

    def others(self, address: str) -> list[str]:
        """Every other address, in the order of `round`."""
        return [each for each in self.round() if each != address]

    def linked(self, _address: str) -> None:
        """A dial worked: reset the backoff."""
        self._fruitless = 0

    def lost(self, address: str) -> None:
        """An open link is lost."""
        self._left = address

    def nobody(self) -> None:
        """A whole round had no success."""
        self._fruitless += 1
        self._left = ""

    @property
    def patience_s(self) -> float:
        """How long a replica may take to accept the link.

        The agent should leave a frozen replica soon. When thousands dial at once all replicas are
        slow, and early retries make that worse. So the limit grows with each failed round.
        """
        return min(LONGEST_S, PATIENCE_S * 2.0**self._fruitless)

    def wait_s(self) -> float:
        """How long to wait before the next round."""
        if not self._fruitless:
            return self._chance.uniform(0.0, FIRST_S)
        longest = min(LONGEST_S, FIRST_S * 2.0**self._fruitless)
        return self._chance.uniform(longest / 2, longest)

    def scout_s(self, before_s: float, longest_s: float) -> float:
        """How long to wait until other replicas are tried again, after a failed try."""
        return min(before_s * self._chance.uniform(1.5, 2.5), longest_s)
