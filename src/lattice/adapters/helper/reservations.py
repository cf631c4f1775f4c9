"""The port `Reservations` by the gate beside the server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NoReturn

from lattice.adapters.helper.administration import AdministrationGate, administration_error
from lattice.adapters.helper.gate import LOG_HINT, SLURM_AWAY, safe_text
from lattice.base.errors import InternalError
from lattice.domain.administration import (
    AdministrationQuestion,
    ListReservations,
    MakeReservation,
    RemoveReservation,
    VerbGroup,
    read_reservation_list,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.privileged import Answer, Outcome
from lattice.domain.reservation import Reservation, ReservationRefused

_SERVER = "lattice-server"
_NO_RIGHT = re.compile(r"permission denied|not authorized|access/permission", re.IGNORECASE)
"""Slurm says `Invalid user id` of a person as well as of an account without rights."""


class HelperReservations:
    """Asks the gate. `cluster` reads slurmctld's own name of the cluster."""

    def __init__(self, gate: AdministrationGate, cluster: Callable[[], Awaitable[str]]) -> None:
        self._gate = gate
        self._cluster = cluster

    async def reserve(self, reservation: Reservation) -> None:
        question = MakeReservation(
            cluster=await self._cluster(),
            name=reservation.name,
            user=reservation.user,
            nodes=tuple(sorted(reservation.nodes)),
        )
        await self._ask(question)

    async def release(self, name: str) -> None:
        await self._ask(RemoveReservation(cluster=await self._cluster(), name=name))

    async def reservations(self) -> tuple[Reservation, ...]:
        cluster, after = await self._cluster(), ""
        found: list[Reservation] = []
        while True:
            answer = await self._ask(ListReservations(cluster=cluster, after=after))
            try:
                part = read_reservation_list(answer.output)
                found += (
                    Reservation(name, user, tuple(sorted(NodeSet.parse(nodes))))
                    for name, user, nodes in part.found
                )
            except ValueError:
                _unreadable()
            if not part.more:
                return tuple(found)
            if not part.found or part.found[-1][0] <= after:
                _unreadable()
            after = part.found[-1][0]

    async def _ask(self, question: AdministrationQuestion) -> Answer:
        if fault := question.fault():
            raise ReservationRefused(f"The gate does not take this: {fault}.")
        answer = await self._gate.ask(question, _SERVER)
        if answer.outcome is Outcome.FAILED:
            message = safe_text(answer.message).rstrip(".")
            if not SLURM_AWAY.search(message) and not _NO_RIGHT.search(message):
                raise ReservationRefused(f"{message}.")
        if answer.outcome is not Outcome.DONE:
            raise administration_error(answer, VerbGroup.CLAIMS)
        return answer


def _unreadable() -> NoReturn:
    raise InternalError("The gate's answer can't be read.", hint=LOG_HINT)
