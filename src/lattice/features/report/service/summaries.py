"""Stores a summary of every finished attempt, so that it outlives the metric store.

It is written when the last samples from agents have had time to arrive, and not while the metric
store is down. Which server writes it is decided by `EndedAttemptQueue`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt
from lattice.domain.metricstore import StoreSilent
from lattice.domain.objects import NoObject, ObjectStore
from lattice.domain.runsummary import BadSummary, RunSummary, decoded, encoded, summary_key
from lattice.domain.scheduler import Scheduler
from lattice.features.report.model import LEAST_COVERED
from lattice.features.report.service.run_meter import RunMeter
from lattice.foundation.ended_attempts import EndedAttemptQueue

_log = logging.getLogger(__name__)
SETTLE_S = 120.0
"""After the end: the last samples of all nodes have arrived."""
LATEST_S = 1200.0
"""After the end: agents keep unsent samples for a quarter of an hour, and no longer."""
_ROUND_S = 15.0


class StoredSummaries:
    """The object store: one document per attempt, which any server reads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def of(self, attempt: JobAttempt) -> RunSummary | None:
        """Return the stored summary, or None if there is none that parses. Raises `Unavailable`."""
        key = summary_key(attempt)
        try:
            return decoded(await self._objects.read(key))
        except NoObject:
            return None
        except BadSummary as error:
            _log.warning("%s is no summary of a run: %s", key, error)
            return None

    async def is_there(self, attempt: JobAttempt) -> bool:
        """Return True if the store has a summary of it. Raises `Unavailable`."""
        key = summary_key(attempt)
        async for each in self._objects.listing(key):
            if each.key == key:
                return True
        return False

    async def keep(self, attempt: JobAttempt, summary: RunSummary) -> bool:
        """Write it; return False if another server has done so before. Raises `Unavailable`."""
        return await self._objects.put_new(summary_key(attempt), encoded(summary))


@dataclass(slots=True)
class SummaryCounts:
    """Counts since the server started."""

    written_total: int = 0
    elsewhere_total: int = 0
    """Another server had written it."""
    silent_total: int = 0
    """Postponed because the metric store did not answer."""


class SummaryLoop:
    """Stores summaries. `replicas` returns the ids of running servers; `replica` is this one."""

    def __init__(
        self,
        scheduler: Scheduler,
        meter: RunMeter,
        summaries: StoredSummaries,
        clock: Clock,
        replica: str = "",
        replicas: Callable[[], Collection[str]] = tuple,
        is_sensitive: Callable[[Allocation], bool] = lambda _: False,
    ) -> None:
        self.queue = EndedAttemptQueue(
            scheduler, clock, summary_key, SETTLE_S, replica, replicas, is_sensitive
        )
        self._meter = meter
        self._summaries = summaries
        self._clock = clock
        self.counts = SummaryCounts()

    @property
    def waiting(self) -> int:
        """Finished attempts without a summary, as far as this server knows."""
        return self.queue.waiting

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            try:
                await self.run_round()
            except LatticeError as error:
                _log.info("summaries of runs: %s", error.message)
            await asyncio.sleep(_ROUND_S)

    async def run_round(self) -> None:
        """Write what is due. Raises `Unavailable`."""
        for attempt in await self.queue.due():
            if await self._written(attempt, self._clock.now().timestamp()):
                self.queue.done(attempt)

    async def _written(self, attempt: JobAttempt, now: float) -> bool:
        """Return True once a summary is stored, by any server."""
        if await self._summaries.is_there(attempt):
            self.counts.elsewhere_total += 1
            return True
        try:
            summary = await self._meter.whole(attempt)
        except StoreSilent as error:
            self.counts.silent_total += 1
            _log.info("summary of %s: %s", attempt.allocation.ref, error)
            return False
        ended = attempt.attempt.ended
        assert ended is not None
        complete = summary.covered is not None and summary.covered >= LEAST_COVERED
        if not complete and now < ended.timestamp() + LATEST_S:
            return False
        if await self._summaries.keep(attempt, summary):
            self.counts.written_total += 1
        else:
            self.counts.elsewhere_total += 1
        return True
