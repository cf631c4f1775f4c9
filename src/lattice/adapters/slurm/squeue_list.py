"""`SqueueJobs`: the list of jobs from `squeue`, where slurmrestd's list is too large to be read.

A reading has every job, since slurmctld gives no difference. But only rows that changed are parsed
and decoded. So 50 000 jobs cost some tens of milliseconds where 400 changed, beside a second in
`squeue` itself.

The jobs of single users can be read in between: somebody who has just submitted does not wait for
the whole list.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ParamSpec, TypeVar

from lattice.adapters.slurm.commands import CommandFailed, Printed, SlurmCommands
from lattice.adapters.slurm.poller import PollCounts
from lattice.adapters.slurm.schema.squeue import BadRows, SqueueFormat, job_of
from lattice.adapters.slurm.squeue_records import SqueueRecords
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.turns import in_few_threads
from lattice.domain.allocation import Allocation
from lattice.domain.allocation_index import AllocationIndex

_TIMEOUT_S = 60.0
_USERS_TIMEOUT_S = 8.0
_MARKS_FOR_S = 300.0
"""All rows are parsed after that, so that marks are of little use to whoever learns them."""
_UNKNOWN_FIELD = "Invalid job format specification"
_UNKNOWN_USER = "Invalid user"

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


class RowsRefused(Unavailable):
    """`squeue` printed something else than it was asked for."""


class SqueueJobs:
    """The jobs of slurmctld, by their rows."""

    def __init__(
        self,
        commands: SlurmCommands,
        clock: Clock,
        placing: Callable[[], Placing],
        counts: PollCounts,
        completed: Callable[[Allocation], Allocation],
    ) -> None:
        """`completed` adds to a new job what its row lacks."""
        self.last_cost_s = 0.0
        self._commands = commands
        self._clock = clock
        self._placing = placing
        self._completed = completed
        self._records = SqueueRecords(self._job, counts)
        self._changing = asyncio.Lock()
        self._with_sluid = True
        self._form: SqueueFormat | None = None
        self._form_at_s = -math.inf

    @property
    def index(self) -> AllocationIndex:
        """The jobs as last read."""
        return self._records.index

    async def poll(self) -> bool:
        """Read all; True if anything changed. Raises `Unavailable`."""
        asked_s = self._clock.monotonic()
        answer = await self._rows(())
        changed = await self._change(self._records.take_whole, *answer, asked_s)
        self.last_cost_s = self._clock.monotonic() - asked_s
        return changed

    async def read_users(self, users: Collection[str]) -> bool:
        """Read the jobs of these; True if any changed. Raises `Unavailable`."""
        asked_s = self._clock.monotonic()
        try:
            answer = await self._rows(users)
        except CommandFailed as failure:
            if _UNKNOWN_USER not in failure.output:
                raise
            return False
        return await self._change(self._records.take_users, *answer, users, asked_s)

    async def replace(
        self,
        change: Callable[[Allocation], Allocation],
        among: Iterable[Allocation] | None = None,
    ) -> None:
        """Apply data from elsewhere to these jobs, or to every one."""
        await self._change(self._records.replace, change, among)

    async def forget(self, index: AllocationIndex) -> None:
        """Begin anew after `index`: the list was read elsewhere meanwhile."""
        async with self._changing:
            self._records.forget(index)

    async def _change(
        self,
        change: Callable[_Arguments, _Found],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Found:
        async with self._changing:
            try:
                return await in_few_threads(change, *arguments, **named)
            except BadRows as problem:
                self._form = None
                raise RowsRefused(str(problem)) from None

    async def _rows(self, users: Collection[str]) -> tuple[SqueueFormat, Printed]:
        """What `squeue` prints, with its form."""
        form = self._current_form()
        timeout_s = _USERS_TIMEOUT_S if users else _TIMEOUT_S
        try:
            rows = await self._commands.job_rows(form.environment, users, timeout_s=timeout_s)
        except Unavailable as failure:
            self._form = None
            is_older = isinstance(failure, CommandFailed) and _UNKNOWN_FIELD in failure.output
            if not self._with_sluid or not is_older:
                raise
            self._with_sluid = False
            return await self._rows(users)
        return form, rows

    def _current_form(self) -> SqueueFormat:
        now_s = self._clock.monotonic()
        if self._form is None or now_s - self._form_at_s >= _MARKS_FOR_S:
            self._form, self._form_at_s = SqueueFormat.new(with_sluid=self._with_sluid), now_s
        return self._form

    def _job(self, rows: Sequence[bytes]) -> Allocation | None:
        job = job_of(rows, self._placing())
        return job and self._completed(job)
