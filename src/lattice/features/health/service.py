"""The state of the server, its metrics and its API description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lattice.base.errors import Unavailable
from lattice.domain.scheduler import Scheduler
from lattice.domain.state import StateView
from lattice.features.health.model import Health

_AWAY = "The agreed state does not answer: what would change it, or depends on it, is refused."


class HealthService:
    """Reports on the process; the metrics and the description come from callables."""

    def __init__(
        self,
        *,
        version: str,
        scheduler: Scheduler,
        state: StateView | None = None,
        note: str = "",
        figures: Callable[[], str],
        description: Callable[[], Awaitable[str]],
    ) -> None:
        self._version = version
        self._scheduler = scheduler
        self._state = state
        self._note = note
        self._figures = figures
        self._description = description

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

    async def figures(self) -> str:
        """Return the server's own metrics in the Prometheus text format."""
        return self._figures()

    async def description(self) -> str:
        """Return the OpenAPI description of the REST interface, as JSON."""
        return await self._description()
