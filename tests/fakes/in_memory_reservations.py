"""Slurm's reservations in memory. Passes the port's contract suite, as the gate does."""

from __future__ import annotations

from collections.abc import Collection

from lattice.base.errors import Unavailable
from lattice.domain.administration import (
    AdministrationQuestion,
    ListReservations,
    MakeReservation,
    RemoveReservation,
)
from lattice.domain.reservation import Reservation, ReservationRefused


class InMemoryReservations:
    """`away`: nothing listens. `jobs`: owner of the job on a node. `waiting`: jobs in it."""

    def __init__(
        self, nodes: Collection[str] = ("n1", "n2", "n3"), users: Collection[str] = ("alice", "bob")
    ) -> None:
        self.away = False
        self.made: dict[str, Reservation] = {}
        self.jobs: dict[str, str] = {}
        self.busy: set[str] = set()
        """Names of reservations with jobs in them."""
        self.changed: set[str] = set()
        """Names of reservations that others changed."""
        self._nodes = frozenset(nodes)
        self._users = frozenset(users)

    async def reserve(self, reservation: Reservation) -> None:
        nodes = tuple(sorted(reservation.nodes))
        wanted = Reservation(reservation.name, reservation.user, nodes)
        self._take(
            MakeReservation(cluster="lab", name=wanted.name, user=wanted.user, nodes=wanted.nodes)
        )
        if wanted.user not in self._users:
            raise ReservationRefused(f"There is no account {wanted.user} on the submit host.")
        if missing := set(nodes) - self._nodes:
            raise ReservationRefused(f"slurmctld has no node {min(missing)}.")
        there = self.made.get(wanted.name)
        if there is not None and (there != wanted or wanted.name in self.changed):
            raise ReservationRefused(f"there is a reservation {wanted.name} for others.")
        for each in self.made.values():
            if each.name != wanted.name and set(each.nodes) & set(nodes):
                raise ReservationRefused("Requested reservation overlaps with another reservation.")
        if {self.jobs.get(each, wanted.user) for each in nodes} != {wanted.user}:
            raise ReservationRefused("Requested nodes are busy.")
        self.made[wanted.name] = wanted

    async def release(self, name: str) -> None:
        self._take(RemoveReservation(cluster="lab", name=name))
        if name in self.changed:
            raise ReservationRefused(f"the reservation {name} was changed by others than Lattice.")
        if name in self.busy:
            raise ReservationRefused("Requested reservation is in use.")
        self.made.pop(name, None)

    async def reservations(self) -> tuple[Reservation, ...]:
        self._take(ListReservations(cluster="lab", after=""))
        return tuple(
            Reservation(name, "" if name in self.changed else each.user, each.nodes)
            for name, each in sorted(self.made.items())
        )

    def _take(self, question: AdministrationQuestion) -> None:
        if fault := question.fault():
            raise ReservationRefused(f"The gate does not take this: {fault}.")
        if self.away:
            raise Unavailable("The gate does not answer.")
