"""What `squeue` does not print of a job, from slurmrestd by the job's id.

That is which GPUs a job has, and how long it was suspended. A job that was resumed shows itself: it
has used less time than has passed since its start. So the time that jobs have used is read too,
every minute.

Until the details of a job were read they count as unknown, as for a site that hides them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.job_records import JobRecords
from lattice.adapters.slurm.schema.squeue import USED_TIME_FORMAT, used_times
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.clock import Clock
from lattice.domain.allocation import Allocation, NodeGpus, State
from lattice.domain.allocation_index import AllocationIndex, ChangeCursor

_LARGE_ARRAY = 100
"""Slurm answers for the id of an array with all of its tasks."""
_TIMES_EVERY_S = 60.0
_TIMES_TIMEOUT_S = 30.0
_SLACK_S = 1.0
"""`squeue` reckons with this machine's clock too, in whole seconds."""
_HELD = frozenset({State.RUNNING, State.SUSPENDED, State.STOPPED, State.COMPLETING})
_PAUSED = frozenset({State.SUSPENDED, State.STOPPED})

_Run = tuple[int, datetime | None]


@dataclass(frozen=True, slots=True)
class _Pause:
    """How long a run was suspended, as read in this state."""

    state: State
    suspended_s: int
    elapsed_s: int | None


class RowDetails:
    """The details of the jobs that `squeue` listed."""

    def __init__(self, commands: SlurmCommands, records: JobRecords, clock: Clock) -> None:
        self._commands = commands
        self._records = records
        self._clock = clock
        self._gpus: dict[_Run, tuple[NodeGpus, ...]] = {}
        self._pauses: dict[_Run, _Pause] = {}
        self._resumed: set[_Run] = set()
        """Runs that have used less time than has passed."""
        self._times_s = -math.inf
        self._cursor = ChangeCursor()
        self._held: dict[_Run, Allocation] = {}
        self._doubtful: set[_Run] = set()
        """Runs of which something may be lacking."""

    def applied(self, job: Allocation) -> Allocation:
        """The job with what is known of its details."""
        run = _run(job)
        gpus, pause = self._gpus.get(run), self._pauses.get(run)
        if gpus and job.gpu_indices != gpus and job.state in _HELD:
            job = replace(job, gpu_indices=gpus)
        if pause is not None and pause.state is job.state:
            known = job.suspended_s == pause.suspended_s and job.elapsed_s == pause.elapsed_s
            elapsed_s = pause.elapsed_s if job.state in _PAUSED else job.elapsed_s
            if not known:
                job = replace(job, suspended_s=pause.suspended_s, elapsed_s=elapsed_s)
        return job

    def lacking(self, index: AllocationIndex) -> list[Allocation]:
        """The jobs whose details are to be read, the newest first. Forgets those that are gone."""
        self._follow(index)
        self._doubtful = {run for run in self._doubtful if self._lacks(run, self._held[run])}
        wanted = [self._held[run] for run in self._doubtful]
        askable = [job for job in wanted if len(index.of_job(job.job_id)) <= _LARGE_ARRAY]
        return sorted(askable, key=lambda job: job.started or job.submitted, reverse=True)

    def _follow(self, index: AllocationIndex) -> None:
        change = self._cursor.changes(index)
        held = {_run(job): job for job in change.added if job.state in _HELD}
        self._held |= held
        self._doubtful |= held.keys()
        for run in {_run(job) for job in change.gone} - held.keys():
            self._held.pop(run, None)
            self._gpus.pop(run, None)
            self._pauses.pop(run, None)
            self._resumed.discard(run)
            self._doubtful.discard(run)

    async def read(self, job: Allocation, placing: Placing) -> None:
        """Ask for one job. Raises `Unavailable`."""
        record = await self._records.job(job.job_id, placing)
        run = _run(job)
        if record is None or _run(record) != run:
            return
        self._resumed.discard(run)
        self._gpus[run] = record.gpu_indices
        if record.state is job.state:
            self._pauses[run] = _Pause(record.state, record.suspended_s, record.elapsed_s)

    async def read_times(self, jobs: Iterable[Allocation]) -> None:
        """Find the jobs that were resumed, every minute. Raises `Unavailable`."""
        if self._clock.monotonic() - self._times_s < _TIMES_EVERY_S:
            return
        running = {job.job_id: job for job in jobs if job.state is State.RUNNING}
        asked_at = self._clock.now()
        printed = await self._commands.job_rows(
            USED_TIME_FORMAT, states="running", timeout_s=_TIMES_TIMEOUT_S
        )
        self._times_s = self._clock.monotonic()
        for job_id, used_s in used_times(printed):
            job = running.get(job_id)
            if job is None or job.started is None:
                continue
            pause = self._pauses.get(_run(job))
            known_s = pause.suspended_s if pause is not None else 0
            passed_s = (asked_at - job.started).total_seconds() - known_s
            if passed_s - used_s > _SLACK_S:
                self._resumed.add(_run(job))
                self._doubtful |= {_run(job)} & self._held.keys()

    def _lacks(self, run: _Run, job: Allocation) -> bool:
        if job.gpus and run not in self._gpus:
            return True
        pause = self._pauses.get(run)
        if pause is None:
            return job.state in _PAUSED or run in self._resumed
        was_paused = pause.state in _PAUSED or pause.suspended_s > 0
        return run in self._resumed or (was_paused and pause.state is not job.state)


def _run(job: Allocation) -> _Run:
    return job.job_id, job.started
