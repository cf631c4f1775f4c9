"""A job's output files, and what an attempt used: from slurmrestd, or from commands before.

Before v0.0.43, slurmrestd omits default names of files, and returns patterns unexpanded. The paths
are text of the job's owner: they are opened with the owner's rights and never with ours.

One task of an array has the array's id. For that id Slurm answers with all tasks: slurmrestd in a
minute and 208 MB if they are 25 000. So `scontrol` is asked for that task by its number, and prints
it alone.

Before v0.0.40, steps come from `sacct`. There the line of a job is followed by those of its steps.
Another run of the same job id has its own line; its start time distinguishes it.
"""

from __future__ import annotations

import re
from datetime import datetime

from lattice.adapters.slurm.answer import checked, read_answer
from lattice.adapters.slurm.commands import CommandFailed, CommandMissing, SlurmCommands
from lattice.adapters.slurm.dialect import Dialect, Dialects
from lattice.adapters.slurm.job_records import JobRecords
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema.steps import run_use
from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.outputs import NamedOutputs, named_outputs
from lattice.domain.runsummary import AccountedUse

_JOB = re.compile(r"^JobId=([0-9]+) ", re.MULTILINE)
_FIELD = re.compile(r"^ +(StdOut|StdErr|BatchHost)=(.*)$", re.MULTILINE)
_UNKNOWN_ID = "Invalid job id"
_NO_SUCH_TASK = re.compile(r"Job \S+ not found")
"""Of an array that is there."""
_EXPANDED = frozenset({"batch_host", "stdout_expanded", "stderr_expanded"})
_TIMEOUT_S = 15.0


class SlurmJobFiles:
    """The port `JobFiles` for one Slurm cluster."""

    def __init__(self, commands: SlurmCommands, rest: SlurmRest, dialects: Dialects) -> None:
        self._commands = commands
        self._records = JobRecords(rest, dialects)
        self._dialects = dialects

    async def of(self, allocation: Allocation) -> NamedOutputs:
        """Raises `NotFound` after slurmctld has removed the job, and `Unavailable`."""
        dialect, job_id = await self._dialects.live(), allocation.job_id
        task = _task_with_arrays_id(allocation)
        if dialect.lists["jobs"].fields >= _EXPANDED:
            # Slurm may hide the array from the user of the command.
            found = await self._from_command_if_there(task, job_id) if task else None
            found = found or await self._from_rest(dialect, job_id)
        else:
            found = await self._from_command(task or str(job_id), job_id)
        if found is None:
            raise _gone(job_id)
        return found

    async def _from_rest(self, dialect: Dialect, job_id: int) -> NamedOutputs | None:
        every = map(dialect.schema.outputs, await self._records.of(dialect, job_id))
        return next((each.outputs for each in every if each and each.job_id == job_id), None)

    async def _from_command(self, name: str, job_id: int) -> NamedOutputs | None:
        try:
            shown = await self._commands.job_shown(name)
        except CommandFailed as failure:
            if _UNKNOWN_ID in failure.output:
                return None
            if _NO_SUCH_TASK.search(failure.output):
                raise _gone(job_id) from None
            raise
        return parse_outputs(shown, job_id)

    async def _from_command_if_there(self, name: str, job_id: int) -> NamedOutputs | None:
        try:
            return await self._from_command(name, job_id)
        except CommandMissing:
            return None


def _gone(job_id: int) -> NotFound:
    return NotFound(f"slurmctld does not know job {job_id} any more.")


def _task_with_arrays_id(allocation: Allocation) -> str:
    """The name of a task whose id is that of its array; empty for every other job."""
    array = allocation.array
    if array is None or array.task_id is None or array.job_id != allocation.job_id:
        return ""
    return f"{array.job_id}_{array.task_id}"


def parse_outputs(shown: str, job_id: int) -> NamedOutputs | None:
    """The files of a job's script. The last of each name counts: those are Slurm's own lines."""
    # Before the first job, then the number and the text of each.
    _, *parts = _JOB.split(shown)
    jobs = dict(zip(parts[::2], parts[1::2], strict=True))
    if str(job_id) not in jobs:
        return None
    found = dict(_FIELD.findall(jobs[str(job_id)]))
    return named_outputs(found.get("BatchHost"), found.get("StdOut"), found.get("StdErr"))


_WITH_STEPS = "v0.0.40"
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_COLUMNS = 5


class SlurmAccounting:
    """The port `Accounting` for one Slurm cluster."""

    def __init__(self, commands: SlurmCommands, rest: SlurmRest, dialects: Dialects) -> None:
        self._commands = commands
        self._rest = rest
        self._dialects = dialects

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        job_id, started = attempt.allocation.job_id, attempt.attempt.started
        dialect = await self._dialects.past()
        if not dialect.is_at_least(_WITH_STEPS):
            return read_used(await self._commands.used(job_id), started)
        path = dialect.path("jobs")
        asked = {"step": str(job_id), "show_duplicates": "true"}
        reply = await self._rest.get(path, asked, timeout_s=_TIMEOUT_S)
        answer = checked(read_answer(reply.body, "jobs"), reply.status, path)
        for use in map(run_use, answer.records):
            if use is not None and use.job_id == job_id and _is_near(str(use.started), started):
                return use.used
        return None


def read_used(text: str, started: datetime | None) -> AccountedUse | None:
    """Parses lines `id|seconds of its start|processor time|resident memory|joules`."""
    if started is None:
        return None
    rows = [line.split("|") for line in text.splitlines()]
    mine: list[list[str]] = []
    inside = False
    for row in rows:
        if len(row) != _COLUMNS:
            continue
        if "." not in row[0]:
            inside = _is_near(row[1], started)
        if inside:
            mine.append(row)
    if not mine:
        return None
    return AccountedUse(
        cpu_seconds=_seconds(mine[0][2]),
        largest_task_bytes=max(filter(None, (_bytes(row[3]) for row in mine)), default=None),
        energy_joules=_bytes(mine[0][4]),
    )


def _is_near(begun: str, started: datetime | None) -> bool:
    if started is None or not (begun.isascii() and begun.isdigit()):
        return False
    return abs(int(begun) - started.timestamp()) <= CLOCK_SLACK_S


def _seconds(text: str) -> float | None:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = found.groups()
    total = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60 + float(seconds)
    # Without a gathering plugin Slurm reports zero.
    return total or None


def _bytes(text: str) -> float | None:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]) * _UNITS[found[2]] or None
