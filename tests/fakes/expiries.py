"""The port `Expiries`: what a test sets, or nothing."""

from __future__ import annotations

from lattice.features.monitoring.model import RefusedNodes


class FixedExpiries:
    """Each is None until it is set; an exception is raised."""

    def __init__(self) -> None:
        self.of: dict[str, float | Exception] = {}
        self.nodes: RefusedNodes | None = None

    async def people(self) -> float | None:
        return self._get("people")

    async def authority(self) -> float | None:
        return self._get("authority")

    async def agents(self) -> float | None:
        return self._get("agents")

    def refused(self) -> RefusedNodes | None:
        return self.nodes

    def _get(self, name: str) -> float | None:
        found = self.of.get(name)
        if isinstance(found, Exception):
            raise found
        return found
