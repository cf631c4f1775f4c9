"""The port of Slurm's reservations of nodes for one person's sensitive work. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

RESERVATION_PREFIX = "lattice-claim-"
"""Begins the name of every reservation that Lattice makes; it changes no other."""


class ReservationRefused(Exception):
    """Slurm answered, and refused it: jobs of others run there, or it knows no such user."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that run the jobs of one person alone."""

    name: str
    user: str
    nodes: tuple[str, ...]
    """In order."""


class Reservations(Protocol):
    """Slurm, by the gate. Every method raises `Unavailable` if it does not answer in time."""

    async def reserve(self, reservation: Reservation) -> None:
        """Make it. Nothing changes if it is there already, with the same user and nodes.

        Raises `ReservationRefused` if Slurm refuses it, or has one of that name for others.
        """

    async def release(self, name: str) -> None:
        """Remove it. Nothing happens if there is none of that name."""

    async def reservations(self) -> tuple[Reservation, ...]:
        """Those that Lattice made, by name."""
