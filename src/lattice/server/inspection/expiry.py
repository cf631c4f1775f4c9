"""`ServerExpiries`: the port of monitoring for certificates of the server and its agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lattice.base.errors import Unavailable
from lattice.features.doctor.service.facts import CertificateFacts
from lattice.features.doctor.service.measured import NotUsed
from lattice.features.monitoring.model import RefusedNodes
from lattice.server.foundation import Ground
from lattice.server.inspection.inspection import ServerInspection


class ServerExpiries:
    """Reads the files as doctor does, and the certificates of agents from the agreed state."""

    def __init__(self, ground: Ground, inspection: ServerInspection) -> None:
        self._trust = ground.agents.parts.trust if ground.agents is not None else None
        self._inspection = inspection

    async def people(self) -> float | None:
        return await _expires(self._inspection.people_certificate)

    async def authority(self) -> float | None:
        return await _expires(self._inspection.authority)

    async def agents(self) -> float | None:
        if self._trust is None or not self._trust.is_current:
            return None
        return self._trust.soonest_expiry()

    def refused(self) -> RefusedNodes | None:
        if self._trust is None or not self._trust.is_current:
            return None
        try:
            revoked, quarantine = self._trust.refused_nodes()
        except Unavailable:
            return None
        return RefusedNodes(revoked=revoked, quarantine=quarantine)


async def _expires(read: Callable[[], Awaitable[CertificateFacts]]) -> float | None:
    try:
        return (await read()).expires.timestamp()
    except NotUsed:
        return None
