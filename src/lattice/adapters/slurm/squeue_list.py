"""`SqueueJobs`: the list of jobs from `squeue`, where slurmrestd's list is too large to be read.

A reading has every job, since slurmctld gives no difference. But a row with the same bytes as
before is the same job: only the others are decoded. So 50 000 jobs cost some tens of milliseconds
where 400 changed, beside a second in `squeue` itself.

The jobs of single users can be read in between: somebody who has just submitted does not wait for
the whole list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.adapters.slurm.commands import CommandFailed, Printed, SlurmCommands
from lattice.adapters.slurm.poller import PollCounts
from lattice.adapters.slurm.schema.squeue import BadRows, SqueueFormat, job_id_of, job_of
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.turns import in_few_threads
from lattice.domain.allocation import Allocation

_TIMEOUT_S = 60.0
_USERS_TIMEOUT_S = 8.0
_UNKNOWN_FIELD = "Invalid job format specification"
_UNKNOWN_USER = "Invalid user"


class RowsRefused(Unavailable):
    """`squeue` printed something else than it was asked for."""


@dataclass(slots=True, eq=False)
class _Record:
    """A record of slurmctld: several rows if it stands for several tasks of an array."""

    rows: tuple[bytes, ...]
    job: Allocation


_Records = dict[bytes, _Record]


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
        self.records: tuple[Allocation, ...] = ()
        self.last_cost_s = 0.0
        self._commands = commands
        self._clock = clock
        self._placing = placing
        self._counts = counts
        self._completed = completed
        self._by_row: _Records = {}
        self._changing = asyncio.Lock()
        self._with_sluid = True
        self._users_read_s: dict[str, float] = {}
        """When the jobs of single users were asked for, if after the whole list."""

    async def poll(self) -> bool:
        """Read all; True if anything changed. Raises `Unavailable`."""
        asked_s = self._clock.monotonic()
        rows = await self._rows(())
        changed = await self._take(rows, lambda: self._users_since(asked_s), whole=True)
        self.last_cost_s = self._clock.monotonic() - asked_s
        return changed

    async def read_users(self, users: Collection[str]) -> bool:
        """Read the jobs of these; True if anything changed. Raises `Unavailable`."""
        asked_s = self._clock.monotonic()
        try:
            rows = await self._rows(users)
        except CommandFailed as failure:
            if _UNKNOWN_USER not in failure.output:
                raise
            return False
        self._users_read_s.update(dict.fromkeys(users, asked_s))
        return await self._take(rows, lambda: frozenset(users), whole=False)

    async def replace_all(self, change: Callable[[Allocation], Allocation]) -> None:
        """Apply data from elsewhere to every job."""
        async with self._changing:
            await in_few_threads(self._replace, change)

    def forget(self) -> None:
        """Begin anew: the list was read elsewhere meanwhile."""
        self._by_row, self.records = {}, ()
        self._users_read_s.clear()

    def _replace(self, change: Callable[[Allocation], Allocation]) -> None:
        for record in self._by_row.values():
            record.job = change(record.job)
        self.records = _jobs(self._by_row)

    async def _rows(self, users: Collection[str]) -> tuple[SqueueFormat, Printed]:
        form = SqueueFormat.new(with_sluid=self._with_sluid)
        timeout_s = _USERS_TIMEOUT_S if users else _TIMEOUT_S
        try:
            rows = await self._commands.job_rows(form.environment, users, timeout_s=timeout_s)
        except CommandFailed as failure:
            if not self._with_sluid or _UNKNOWN_FIELD not in failure.output:
                raise
            self._with_sluid = False
            return await self._rows(users)
        return form, rows

    async def _take(
        self,
        answer: tuple[SqueueFormat, Printed],
        users: Callable[[], frozenset[str]],
        *,
        whole: bool,
    ) -> bool:
        form, output = answer
        async with self._changing:
            work = _Merge(self._by_row, self._job, users(), whole=whole)
            try:
                await in_few_threads(work.run, form.rows(output))
            except BadRows as problem:
                raise RowsRefused(str(problem)) from None
            self._counts.records_decoded_total += work.decoded
            self._counts.records_reused_total += work.reused
            self._counts.decode_dropped_total += work.dropped
            if work.changed:
                self._by_row, self.records = work.records, work.jobs
        return work.changed

    def _job(self, rows: Sequence[bytes]) -> Allocation | None:
        job = job_of(rows, self._placing())
        return job and self._completed(job)

    def _users_since(self, asked_s: float) -> frozenset[str]:
        newer = {user: at for user, at in self._users_read_s.items() if at > asked_s}
        self._users_read_s = newer
        return frozenset(newer)


class _Merge:
    """What a reading makes of the records before it."""

    def __init__(
        self,
        before: _Records,
        decode: Callable[[Sequence[bytes]], Allocation | None],
        users: Collection[str],
        *,
        whole: bool,
    ) -> None:
        """`users`: those who were read; with `whole` those whose records before are newer."""
        self.records: _Records = {}
        self.jobs: tuple[Allocation, ...] = ()
        self.changed = False
        self.decoded = self.reused = self.dropped = 0
        self._before = before
        self._job_of = decode
        self._users = frozenset(users)
        self._whole = whole
        self._is_new = False

    def run(self, rows: Iterable[bytes]) -> None:
        before, now = self._before, self.records
        new: dict[bytes, list[bytes]] = {}
        for row in rows:
            record = before.get(row)
            if record is None:
                new.setdefault(job_id_of(row), []).append(row)
            else:
                now[row] = record
        self.reused = len(now)
        self._split_again(new)
        for each in new.values():
            self._decode(tuple(each))
        if self._users or not self._whole:
            self._keep_others()
        self.changed = self._is_new or len(now) != len(before)
        if self.changed:
            self.jobs = _jobs(now)

    def _split_again(self, new: dict[bytes, list[bytes]]) -> None:
        """A record that lost or got some of its tasks is another one."""
        shared = {id(each): each for each in self.records.values() if len(each.rows) > 1}
        for record in shared.values():
            left = [row for row in record.rows if row in self.records]
            job_id = job_id_of(record.rows[0])
            if len(left) != len(record.rows) or job_id in new:
                for row in left:
                    del self.records[row]
                new[job_id] = left + new.get(job_id, [])

    def _decode(self, rows: tuple[bytes, ...]) -> None:
        job = self._job_of(rows)
        self.decoded += 1
        if job is None:
            self.dropped += 1
            return
        self._is_new = True
        self.records.update(dict.fromkeys(rows, _Record(rows, job)))

    def _keep_others(self) -> None:
        """The records before of whom this reading does not know, or knows less."""
        keeps = self._users.__contains__ if self._whole else lambda user: user not in self._users
        if self._whole:
            for row in [row for row, each in self.records.items() if keeps(each.job.user)]:
                del self.records[row]
        self.records.update(
            (row, each) for row, each in self._before.items() if keeps(each.job.user)
        )


def _jobs(records: Mapping[bytes, _Record]) -> tuple[Allocation, ...]:
    return tuple({id(each): each.job for each in records.values()}.values())
