"""Whom to dial and when: pure, but for chance.

Each node has its own order of the replicas, so that links spread evenly and a replica's agents
spread over all others when it dies. The first dial after a loss waits a moment drawn at random,
lest thousands dial at once; a round that reached nobody doubles the wait, up to half a minute.
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
    """One node's dialling. `known` grows by what replicas tell; `given` is what the site wrote."""

    def __init__(self, node: str, given: Iterable[str], chance: Random) -> None:
        self._node = node
        self._given = tuple(dict.fromkeys(given))
        if not self._given:
            raise ValueError("no server to dial")
        self._told: tuple[str, ...] = ()
        self._chance = chance
        self._fruitless = 0
        self._left = ""

    def told(self, addresses: Iterable[str]) -> None:
        """What a replica says about where replicas are."""
        self._told = tuple(dict.fromkeys(addresses))

    def round(self) -> list[str]:
        """The addresses to try now, in order; the one just lost comes last."""
        order = preference(self._node, (*self._told, *self._given))
        return sorted(order, key=lambda address: address == self._left)

    def others(self, address: str) -> list[str]:
        """Every other address."""
        return [each for each in self.round() if each != address]

    def linked(self, _address: str) -> None:
        """A dial worked."""
        self._fruitless = 0

    def lost(self, address: str) -> None:
        """A link that worked is gone."""
        self._left = address

    def nobody(self) -> None:
        """A whole round reached nobody."""
        self._fruitless += 1
        self._left = ""

    @property
    def patience_s(self) -> float:
        """How long a replica may take to welcome us.

        One that is frozen should be left soon; where thousands dial at once all are slow, and
        who gives up early only makes it worse. So patience grows with each fruitless round.
        """
        return min(LONGEST_S, PATIENCE_S * 2.0**self._fruitless)

    def wait_s(self) -> float:
        """How long to wait before the next round."""
        if not self._fruitless:
            return self._chance.uniform(0.0, FIRST_S)
        longest = min(LONGEST_S, FIRST_S * 2.0**self._fruitless)
        return self._chance.uniform(longest / 2, longest)

    def scout_s(self, before_s: float, longest_s: float) -> float:
        """How long to wait until other replicas are tried again, after trying them in vain."""
        return min(before_s * self._chance.uniform(1.5, 2.5), longest_s)
