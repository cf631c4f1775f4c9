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
    """Empty in a list: others than Lattice changed it, so that jobs of others may run there."""
    nodes: tuple[str, ...]
    """Sorted as texts."""


class Reservations(Protocol):
    """Slurm, by the gate. Every method raises `Unavailable` if it does not answer in time.

    Its subclass `Unsure` means that the change may have happened: ask again, each call may be
    repeated. A site that does not allow it raises `ConfigurationError`, with what to do.
    """

    async def reserve(self, reservation: Reservation) -> None:
        """Make it. Nothing changes if it is there already, with the same user and nodes.

        Raises `ReservationRefused` if Slurm refuses it, has one of that name for others, or has
        jobs of others on these nodes. Nothing that this call made stays then.
        """

    async def release(self, name: str) -> None:
        """Remove it. Nothing happens if there is none of that name.

        Raises `ReservationRefused` while jobs in it run or wait, or if others changed it.
        """

    async def reservations(self) -> tuple[Reservation, ...]:
        """Those that Lattice made, by name."""
