"""Claims that are just there, and a Slurm that refuses and loses what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.claim import ClaimSet, ClaimStep, NodeClaim
from lattice.domain.reservation import Reservation, ReservationRefused
from tests.fakes.in_memory_reservations import InMemoryReservations


def node_claim(user: str, *nodes: str, claim_id: str = "c0ffee000001", **more: object) -> NodeClaim:
    """A claim that has been there for long."""
    facts: dict[str, object] = {
        "sub": f"sub-{user}",
        "step": ClaimStep.CLAIMED,
        "stepped": 1.0,
        "since": 1.0,
    }
    return NodeClaim(id=claim_id, user=user, nodes=tuple(sorted(nodes)), **facts | more)  # type: ignore[arg-type]


@dataclass
class FixedClaims:
    """The port `Claims`: always these."""

    held: tuple[NodeClaim, ...] = ()
    past: tuple[NodeClaim, ...] = ()
    away: bool = False

    def claims(self) -> ClaimSet:
        if self.away:
            raise Unavailable("The agreed state has not answered yet")
        return ClaimSet(self.held, self.past)


class FaultyReservations(InMemoryReservations):
    """One Slurm that several servers change, with faults.

    `refusing` is its text against every new one, `in_use` against every removal. `unasked`: the
    site does not allow claims. With `loses_answers` it acts, and nobody hears of it.
    """

    def __init__(self, nodes: Iterable[str], users: Iterable[str]) -> None:
        super().__init__(tuple(nodes), tuple(users))
        self.refusing = self.in_use = ""
        self.unasked = self.loses_answers = False
        self.calls: list[str] = []

    async def reserve(self, reservation: Reservation) -> None:
        await self._reach("reserve")
        if self.refusing and reservation.name not in self.made:
            raise ReservationRefused(self.refusing)
        await super().reserve(reservation)
        self._answer()

    async def release(self, name: str) -> None:
        await self._reach("release")
        if self.in_use and name in self.made:
            raise ReservationRefused(self.in_use)
        await super().release(name)
        self._answer()

    async def _reach(self, call: str) -> None:
        self.calls.append(call)
        # Others get their turn, as they do while the gate is asked.
        await asyncio.sleep(0)
        if self.unasked:
            raise ConfigurationError("This site does not let Lattice reserve nodes in Slurm.")

    def _answer(self) -> None:
        if self.loses_answers:
            raise Unavailable("The gate does not answer.")
