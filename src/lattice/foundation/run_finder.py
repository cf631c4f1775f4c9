"""The training runs of an allocation, for every feature that shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.domain.allocation import Allocation
from lattice.domain.checkpoint_lineage import CheckpointQuestion
from lattice.domain.source import Source
from lattice.domain.training_run import (
    RUN_STORE,
    RunPoint,
    RunStore,
    RunStoreSilent,
    StoredTraining,
    TrainingRun,
    belongs,
    runs_of,
    training_run,
)

PAUSE_S = 5.0
"""How long a store that was too slow for a caller is not asked by others as impatient."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs, and where they come from; no source if the site has no run store."""

    runs: tuple[TrainingRun, ...] = ()
    sources: tuple[Source, ...] = ()
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the trainings were given, by the id of the run."""


class TrainingRunFinder:
    """The site's run store, asked for allocations. Never raises. `store`: None if there is none."""

    def __init__(self, clock: Clock, store: RunStore | None = None) -> None:
        self._clock = clock
        self._store = store
        self._slow_s = 0.0
        self._rests_until_s = float("-inf")

    async def of(self, allocation: Allocation, within_s: float) -> FoundRuns:
        """The runs of an allocation, newest first."""
        store = self._store
        if store is None:
            return FoundRuns()
        if within_s <= self._slow_s and self._clock.monotonic() < self._rests_until_s:
            return FoundRuns((), (self._late(within_s),))
        try:
            async with asyncio.timeout(within_s):
                found = await store.of_job(allocation.job_id)
        except TimeoutError:
            # Those who wait no longer than this caller need not try for a while.
            self._slow_s, self._rests_until_s = within_s, self._clock.monotonic() + PAUSE_S
            return FoundRuns((), (self._late(within_s),))
        except RunStoreSilent as silence:
            return FoundRuns((), (self._silent(str(silence)),))
        runs = runs_of(allocation, found, self._clock.now(), store)
        parameters = {each.id: each.parameters for each in found}
        return FoundRuns(runs, (self._answered(),), parameters)

    async def named(self, name: str) -> tuple[tuple[StoredTraining, ...], tuple[Source, ...]]:
        """All runs with this name or id. They may be anybody's."""
        if self._store is None:
            return (), ()
        try:
            return await self._store.named(name), (self._answered(),)
        except RunStoreSilent as silence:
            return (), (self._silent(str(silence)),)

    async def with_checkpoint(
        self, question: CheckpointQuestion
    ) -> tuple[tuple[StoredTraining, ...], str]:
        """All runs with this checkpoint, and why the store is silent. They may be anybody's."""
        if self._store is None:
            return (), ""
        try:
            return await self._store.with_checkpoint(question.tag, question.checksum), ""
        except RunStoreSilent as silence:
            return (), str(silence)

    def belongs(self, allocation: Allocation, run: StoredTraining) -> bool:
        """Return True if the run names this allocation."""
        return belongs(allocation, run, self._clock.now())

    def shown(self, allocation: Allocation, run: StoredTraining) -> TrainingRun:
        """The run as one of this allocation."""
        link = self._store.link(run) if self._store is not None else ""
        return training_run(allocation, run, self._clock.now(), link)

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        """What was logged of one metric. Empty if the store does not answer."""
        if self._store is None:
            return ()
        try:
            return await self._store.history(run, metric)
        except RunStoreSilent:
            return ()

    def _answered(self) -> Source:
        return Source(name=RUN_STORE, ok=True, as_of=self._clock.now(), age_s=0.0)

    def _late(self, within_s: float) -> Source:
        return self._silent(f"it did not answer within {within_s:g} s")

    @staticmethod
    def _silent(reason: str) -> Source:
        return Source(name=RUN_STORE, ok=False, error=reason)
