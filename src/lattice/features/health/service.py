"""The state of the server."""

from __future__ import annotations

from lattice.base.errors import Unavailable
from lattice.domain.scheduler import Scheduler
from lattice.domain.source import LIVE, Source
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
            slurm = self._scheduler.live().source
        except Unavailable as error:
            slurm = Source(name=LIVE, ok=False, error=error.message)
        there = self._state is None or self._state.source.ok
        return Health(
            status="ok" if slurm.ok and slurm.incomplete is None and there else "degraded",
            version=self._version,
            state="none" if self._state is None else "ok" if there else "away",
            note=" ".join(filter(None, self._notes(slurm, there=there))),
        )

    def _notes(self, slurm: Source, *, there: bool) -> tuple[str, ...]:
        silent = "" if slurm.ok else f"{slurm.error or 'Slurm does not answer'}."
        return (self._note if there else _AWAY, silent, slurm.incomplete or "")
