"""`JobList`: the jobs of slurmctld, from slurmrestd or from `squeue`, whichever costs less.

slurmrestd answers "nothing changed" for almost nothing, and its records lack nothing. But its list
takes 2 ms a job. So from some thousand jobs on, `squeue` prints the list. Its rows lack which GPUs
a job has, and how long it was suspended. After each reading that is read from slurmrestd for a
while, by the jobs' ids. Until then it counts as unknown.

`squeue` runs as the user of this process. If Slurm hides jobs from that user, it is not used.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from lattice.adapters.slurm.answer import unfinished_jobs
from lattice.adapters.slurm.commands import CommandMissing, SlurmCommands
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.first_submit import Origins, is_requeued, steady_attempts
from lattice.adapters.slurm.job_records import JobRecords
from lattice.adapters.slurm.poller import Polled
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.row_details import RowDetails
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.squeue_list import RowsRefused, SqueueJobs
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.turns import in_few_threads
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import AllocationIndex, ChosenJobs
from lattice.domain.scheduler import JobListSource

_log = logging.getLogger(__name__)

_MANY = 2_000
"""From so many jobs on, `squeue` costs less."""
_FEW = 1_000
_REFUSED_FOR_S = 600.0
_TIMEOUT_S = 15.0
_REST_SHARE = 10
_SQUEUE_SHARE = 2
"""Most of its cost is not slurmctld's."""
_SQUEUE_LEAST_S = 2.0
"""Each reading has every job, so it costs the server too."""
_DETAILS_S = 0.5
_IN_LOOP = 1_000
"""Jobs; longer lists are worked on in a thread."""

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class JobList:
    """The list of jobs. The counters are in `counts`."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it stands on
        self,
        polled: Polled[Allocation],
        commands: SlurmCommands,
        site: SlurmSite,
        rest: SlurmRest,
        dialects: Dialects,
        clock: Clock,
        placing: Callable[[], Placing],
        origins: Origins,
        source: JobListSource = JobListSource.AUTO,
    ) -> None:
        """`site`: what Slurm hides from the user of this process. `polled` applies `origins`."""
        self.counts = polled.counts
        self._source = source
        self._polled = polled
        self.index = AllocationIndex()
        """The jobs as last read."""
        self._origins = origins
        self._requeued = ChosenJobs(is_requeued)
        self._details = RowDetails(commands, JobRecords(rest, dialects), clock)
        self._squeue = SqueueJobs(commands, clock, placing, self.counts, self._completed)
        self._site = site
        self._rest = rest
        self._dialects = dialects
        self._clock = clock
        self._placing = placing
        self._by_squeue = False
        self._refused_s = -math.inf
        self._indexing = asyncio.Lock()
        """One update at a time, so that an older list never replaces a newer one."""

    @property
    def last_cost_s(self) -> float:
        """Seconds that the last reading took."""
        return self._squeue.last_cost_s if self._by_squeue else self._polled.last_cost_s

    @property
    def usual_cost_s(self) -> float:
        """Seconds that the next one will take."""
        return self._squeue.last_cost_s if self._by_squeue else self._polled.usual_cost_s

    @property
    def is_long(self) -> bool:
        """True if the jobs of single users can be read alone."""
        return self._by_squeue

    @property
    def share(self) -> int:
        """A reading may take this part of the time."""
        return _SQUEUE_SHARE if self._by_squeue else _REST_SHARE

    @property
    def least_interval_s(self) -> float:
        """So long at least from one reading to the next."""
        return _SQUEUE_LEAST_S if self._by_squeue else 0.0

    async def poll(self) -> bool:
        """Read once; True if the list may have changed. Raises `Unavailable`."""
        await self._choose()
        changed = await (self._poll_squeue() if self._by_squeue else self._polled.poll())
        if changed:
            await self._index_jobs()
        return changed

    async def _poll_squeue(self) -> bool:
        begun = self._clock.monotonic()
        self.counts.polls_total += 1
        try:
            changed = await self._squeue.poll()
        except Unavailable as problem:
            self.counts.polls_failed_total += 1
            if isinstance(problem, CommandMissing | RowsRefused):
                _log.warning("slurm jobs: %s; slurmrestd's list is read instead", problem.message)
                self._refused_s = begun
            raise
        finally:
            self.counts.poll_seconds_total += self._clock.monotonic() - begun
        self.counts.polls_unchanged_total += not changed
        return changed

    async def read_users(self, users: Collection[str]) -> bool:
        """Read the jobs of these in a long list; True if any changed. Raises `Unavailable`."""
        changed = await self._squeue.read_users(users)
        if changed:
            await self._index_jobs()
        return changed

    async def replace(
        self,
        change: Callable[[Allocation], Allocation],
        among: Iterable[Allocation] | None = None,
    ) -> None:
        """Apply data from elsewhere to every job; to these at least, if only they change."""
        await self._replace(change, among)
        await self._index_jobs()

    async def read_origins(self) -> bool:
        """Read earlier runs of some jobs; True if any was found."""
        requeued = self._requeued.of(self.index)
        learnt = await self._origins.learn(requeued, self._placing())
        if learnt:
            await self.replace(self._origins.completed, learnt)
        return bool(learnt)

    async def read_details(self) -> bool:
        """Read what rows lack, the newest jobs first, for a while; True if anything was found."""
        if not self._by_squeue:
            return False
        until_s = self._clock.monotonic() + _DETAILS_S
        await self._details.read_times(self.index.allocations)
        lacking = await in_few_threads(self._details.lacking, self.index)
        if not lacking:
            return False
        try:
            for job in lacking:
                await self._details.read(job, self._placing())
                if self._clock.monotonic() >= until_s:
                    break
        finally:
            # Also what was read before a failure: those jobs lack nothing the next time.
            await self.replace(self._details.applied, lacking)
        return True

    def _completed(self, job: Allocation) -> Allocation:
        """A job of `squeue` with what its row lacks."""
        return self._details.applied(self._origins.completed(job))

    async def _replace(
        self,
        change: Callable[[Allocation], Allocation],
        among: Iterable[Allocation] | None = None,
    ) -> None:
        if self._by_squeue:
            await self._squeue.replace(change, among)
        else:
            await self._polled.replace_all(change)

    async def _index_jobs(self) -> None:
        async with self._indexing:
            index = await self._read_index()
            change = await self._in_thread_if_long(index.since, self.index)
            steady = steady_attempts(change.gone, change.added)
            if steady is not None:
                completed = self._origins.completed
                await self._replace(lambda job: completed(steady(job)), change.added)
                index = await self._read_index()
            self.index = index

    async def _read_index(self) -> AllocationIndex:
        if self._by_squeue:
            return self._squeue.index
        return await self._in_thread_if_long(self.index.next, self._polled.records)

    async def _in_thread_if_long(self, work: Callable[[_Given], _Found], given: _Given) -> _Found:
        if max(len(self._polled.records), len(self.index.allocations)) <= _IN_LOOP:
            return work(given)
        return await in_few_threads(work, given)

    async def _choose(self) -> None:
        if self._source is not JobListSource.AUTO:
            by_squeue = self._source is JobListSource.SQUEUE
        elif self._clock.monotonic() - self._refused_s < _REFUSED_FOR_S:
            by_squeue = False
        elif self._by_squeue:
            count = len(self._squeue.index.allocations)
            by_squeue = not count or count >= _FEW
        else:
            size = len(self._polled.records) or await self._size()
            by_squeue = size >= _MANY and not await self._site.hides_jobs()
        if by_squeue != self._by_squeue:
            _log.info("slurm jobs: %s prints the list", "squeue" if by_squeue else "slurmrestd")
            await self._squeue.forget(self.index)
            self._by_squeue = by_squeue

    async def _size(self) -> int:
        """About how many jobs slurmctld has, before any list was read."""
        dialect = await self._dialects.live()
        reply = await self._rest.get(dialect.path("diag"), timeout_s=_TIMEOUT_S)
        return unfinished_jobs(reply.body)
