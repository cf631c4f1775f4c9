"""The state of the server."""

from __future__ import annotations

from lattice.base.errors import Unavailable
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateView
from lattice.features.health.model import Health

_AWAY = "The agreed state does not answer: what would change it, or depends on it, is refused."


class HealthService:
    """Reports on the process."""

    def __init__(
        self, *, version: str, scheduler: Scheduler, state: StateView | None = None, note: str = ""
    ) -> None:
        self._version = version
        self._scheduler = scheduler
        self._state = state
        self._note = note

    async def health(self) -> Health:
        """Return the state. A `degraded` server still answers, with the last known data."""
        try:
            well = self._scheduler.live().source.ok
        except Unavailable:
            well = False
        there = self._state is None or self._state.source.ok
        return Health(
            status="ok" if well and there else "degraded",
            version=self._version,
            state="none" if self._state is None else "ok" if there else "away",
            note=self._note if there else _AWAY,
        )
