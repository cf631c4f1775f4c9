"""The lab's gate, as the server's user reaches it."""

from __future__ import annotations

from collections.abc import Sequence

from lab.laboratory import Lab
from lab.slurm_config import CLUSTER
from lab.users import SERVER_USER
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.administration import AdministrationGate, HelperAdministration
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.reservations import HelperReservations
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.privileged import Answer, Question
from tests.contract.identities import being


class ServerChannel(HelperChannel):
    """The gate serves one user alone, and the kernel names it who connects."""

    async def ask(
        self,
        grant: str,
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,
    ) -> tuple[Answer, list[int]]:
        with being(SERVER_USER):
            return await super().ask(
                grant, question, descriptors, most_descriptors=most_descriptors
            )


async def cluster() -> str:
    return CLUSTER


def administration_gate(lab: Lab) -> AdministrationGate:
    signer = GrantSigner(SigningKey.load(lab.gate.grant_key), SystemClock())
    return AdministrationGate((ServerChannel(lab.gate.socket), signer))


def gate_administration(lab: Lab) -> HelperAdministration:
    """The administration of the lab's cluster by its gate."""
    return HelperAdministration(administration_gate(lab), cluster)


def gate_reservations(lab: Lab) -> HelperReservations:
    """The reservations of the lab's cluster by its gate."""
    return HelperReservations(administration_gate(lab), cluster)
