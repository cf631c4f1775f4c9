"""`JobList`: the jobs of slurmctld, from slurmrestd or from `squeue`, whichever costs less.

slurmrestd answers "nothing changed" for almost nothing, and its records lack nothing. But its list
takes 2 ms a job. So from some thousand jobs on, `squeue` prints the list. Its rows lack which GPUs
a job has, and how long it was suspended. After each reading that is read from slurmrestd for a
while, by the jobs' ids. Until then it counts as unknown.

`squeue` runs as the user of this process. If Slurm hides jobs from that user, it is not used.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection

from lattice.adapters.slurm.answer import unfinished_jobs
from lattice.adapters.slurm.commands import CommandMissing, SlurmCommands
from lattice.adapters.slurm.dialect import Dialects
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


class JobList:
    """The list of jobs. The counters are in `counts`."""

    def __init__(
        self,
        polled: Polled[Allocation],
        commands: SlurmCommands,
        site: SlurmSite,
        rest: SlurmRest,
        dialects: Dialects,
        clock: Clock,
        placing: Callable[[], Placing],
        source: JobListSource = JobListSource.AUTO,
    ) -> None:
        """`site`: what Slurm hides from the user of this process."""
        self.counts = polled.counts
        self._source = source
        self._polled = polled
        self._details = RowDetails(commands, JobRecords(rest, dialects), clock)
        self._squeue = SqueueJobs(commands, clock, placing, self.counts, self._details.applied)
        self._site = site
        self._rest = rest
        self._dialects = dialects
        self._clock = clock
        self._placing = placing
        self._by_squeue = False
        self._refused_s = -math.inf

    @property
    def records(self) -> tuple[Allocation, ...]:
        """The jobs of the last reading; the same tuple while nothing changes."""
        return self._squeue.records if self._by_squeue else self._polled.records

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
        if not self._by_squeue:
            return await self._polled.poll()
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
        return await self._squeue.read_users(users)

    async def replace_all(self, change: Callable[[Allocation], Allocation]) -> None:
        """Apply data from elsewhere to every job."""
        await (self._squeue if self._by_squeue else self._polled).replace_all(change)

    async def read_details(self) -> bool:
        """Read what rows lack, the newest jobs first, for a while; True if anything was found."""
        if not self._by_squeue:
            return False
        until_s = self._clock.monotonic() + _DETAILS_S
        await self._details.read_times(self.records)
        lacking = await in_few_threads(self._details.lacking, self.records)
        for job in lacking:
            await self._details.read(job, self._placing())
            if self._clock.monotonic() >= until_s:
                break
        if lacking:
            await self._squeue.replace_all(self._details.applied)
        return bool(lacking)

    async def _choose(self) -> None:
        if self._source is not JobListSource.AUTO:
            by_squeue = self._source is JobListSource.SQUEUE
        elif self._clock.monotonic() - self._refused_s < _REFUSED_FOR_S:
            by_squeue = False
        elif self._by_squeue:
            by_squeue = not self.records or len(self.records) >= _FEW
        else:
            size = len(self._polled.records) or await self._size()
            by_squeue = size >= _MANY and not await self._site.hides_jobs()
        if by_squeue != self._by_squeue:
            _log.info("slurm jobs: %s prints the list", "squeue" if by_squeue else "slurmrestd")
            self._squeue.forget()
            self._by_squeue = by_squeue

    async def _size(self) -> int:
        """About how many jobs slurmctld has, before any list was read."""
        dialect = await self._dialects.live()
        reply = await self._rest.get(dialect.path("diag"), timeout_s=_TIMEOUT_S)
        return unfinished_jobs(reply.body)
