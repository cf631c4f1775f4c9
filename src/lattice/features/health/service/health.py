"""The state of the server. Everything here is public: no addresses, no texts of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lattice.base.errors import Unavailable
from lattice.domain.scheduler import Scheduler
from lattice.domain.source import LIVE, Source
from lattice.domain.state import StateView
from lattice.features.health.model import EngineHealth, Engines, Health, Readiness
from lattice.features.health.service.engines import EngineWatch
from lattice.foundation.series import SeriesValue

_AWAY = "The agreed state does not answer: what would change it, or depends on it, is refused."
_NEVER = "Slurm has not answered yet"
_SILENT = "slurmctld does not answer"
_HIDDEN = "Slurm hides records from this server (PrivateData)"
_OK = EngineHealth(state="ok")


class HealthService:
    """Reports on the process."""

    def __init__(
        self,
        *,
        version: str,
        scheduler: Scheduler,
        engines: EngineWatch,
        state: StateView | None = None,
        note: str = "",
        accounting: Callable[[], str] = lambda: "",
        accounting_age_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`accounting` returns why slurmdbd does not answer; empty if it does.

        `accounting_age_s` returns the age of its newest answer.
        """
        self._accounting_age_s = accounting_age_s
        self._version = version
        self._scheduler = scheduler
        self._engines = engines
        self._state = state
        self._note = note
        self._accounting = accounting

    async def health(self) -> Health:
        """Return the state. A `degraded` server still answers, with the last known data."""
        slurm = self._slurm()
        there = self._state is None or self._state.source.ok
        return Health(
            status="ok" if slurm.ok and slurm.incomplete is None and there else "degraded",
            version=self._version,
            state="none" if self._state is None else "ok" if there else "away",
            note=" ".join(filter(None, self._notes(slurm, there=there))),
            engines=self._of_engines(slurm, there=there),
        )

    async def readiness(self) -> Readiness:
        """Whether it can serve: Slurm and the agreed state were read at least once.

        A server with an engine that is away later still serves what it knows, with its age. To take
        it out of service would help nobody, as the engine is away for all servers.
        """
        slurm = self._slurm()
        there = self._state is None or self._state.source.ok
        return Readiness(
            ready=slurm.as_of is not None and self._is_state_read(),
            version=self._version,
            engines=self._of_engines(slurm, there=there),
        )

    def values(self) -> Iterator[SeriesValue]:
        """Whether each engine answers, and how old its newest answer is."""
        slurm = self._slurm()
        found = self._of_engines(slurm, there=self._state is None or self._state.source.ok)
        for engine, health, age_s in (
            ("slurmctld", found.slurm, slurm.age_s),
            ("slurmdbd", found.accounting, self._accounting_age_s()),
            ("state", found.state, self._state.source.age_s if self._state else None),
            ("metric_store", found.metrics, self._engines.age_s("metric_store")),
            ("object_store", found.objects, self._engines.age_s("object_store")),
        ):
            if health.state == "none":
                continue
            yield SeriesValue("lattice_engine_up", float(health.state == "ok"), (engine,))
            if age_s is not None:
                yield SeriesValue("lattice_engine_answer_age_seconds", age_s, (engine,))
        if self._engines.members is not None:
            for state, count in zip(("ok", "away"), self._engines.members, strict=True):
                yield SeriesValue("lattice_etcd_members", count, (state,))

    def _slurm(self) -> Source:
        try:
            return self._scheduler.live().source
        except Unavailable:
            return Source(name=LIVE, ok=False)

    def _is_state_read(self) -> bool:
        if self._state is None:
            return True
        # Before the first reading nobody knows who is locked out, or with whom a job is shared.
        return self._state.source.as_of is not None

    def _of_engines(self, slurm: Source, *, there: bool) -> Engines:
        return Engines(
            slurm=_of_slurm(slurm),
            accounting=self._of_accounting(slurm),
            state=self._of_state(there=there),
            objects=self._engines.objects,
            metrics=self._engines.metrics,
        )

    def _of_accounting(self, slurm: Source) -> EngineHealth:
        if self._accounting():
            return EngineHealth(state="away", reason="slurmdbd does not answer")
        if slurm.as_of is None:
            return EngineHealth(state="away", reason=_NEVER)
        return _OK

    def _of_state(self, *, there: bool) -> EngineHealth:
        if self._state is None:
            return EngineHealth(state="none", reason="the state ends with this server")
        return _OK if there else EngineHealth(state="away", reason="does not answer")

    def _notes(self, slurm: Source, *, there: bool) -> tuple[str, ...]:
        silent = "" if slurm.ok else f"{_NEVER if slurm.as_of is None else _SILENT}."
        return (self._note if there else _AWAY, silent, slurm.incomplete or "")


def _of_slurm(slurm: Source) -> EngineHealth:
    if slurm.ok:
        return EngineHealth(state="ok", reason=_HIDDEN if slurm.incomplete else "")
    return EngineHealth(state="away", reason=_NEVER if slurm.as_of is None else _SILENT)
