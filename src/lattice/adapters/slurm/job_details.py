"""A job's output files from `scontrol show job`, and what an attempt used, from `sacct`.

slurmrestd omits default names of files, and returns patterns unexpanded. The paths are text of the
job's owner: they are opened with the owner's rights and never with ours.

In `sacct` the line of a job is followed by those of its steps. Another run of the same job id has
its own line; its start time distinguishes it.
"""

from __future__ import annotations

import re
from datetime import datetime

from lattice.adapters.slurm.commands import CommandFailed, SlurmCommands
from lattice.base.errors import NotFound
from lattice.domain.attempts import JobAttempt
from lattice.domain.logs import LogKind
from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.outputs import NamedOutputs
from lattice.domain.runsummary import AccountedUse

_FIELD = re.compile(r"^ +(StdOut|StdErr|BatchHost)=(.*)$", re.MULTILINE)
_GONE = "Invalid job id"


class SlurmJobFiles:
    """The port `JobFiles` for one Slurm cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    async def of(self, job_id: int) -> NamedOutputs:
        """Raises `NotFound` after slurmctld has removed the job, and `Unavailable`."""
        try:
            shown = await self._commands.job_shown(job_id)
        except CommandFailed as failure:
            if _GONE in failure.output:
                raise NotFound(f"slurmctld does not know job {job_id} any more.") from None
            raise
        return parse_outputs(shown)


def parse_outputs(shown: str) -> NamedOutputs:
    """The files of a batch script. The last of each name counts: those are Slurm's own lines."""
    found = dict(_FIELD.findall(shown))
    files = {
        kind: path
        for kind, name in ((LogKind.STDOUT, "StdOut"), (LogKind.STDERR, "StdErr"))
        if (path := found.get(name, "")).startswith("/") and path != "/dev/null"
    }
    if files.get(LogKind.STDERR) == files.get(LogKind.STDOUT):
        files.pop(LogKind.STDERR, None)
    return NamedOutputs(host=found.get("BatchHost", ""), files=files)


_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_COLUMNS = 5


class SlurmAccounting:
    """The port `Accounting` for one Slurm cluster."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        text = await self._commands.used(attempt.allocation.job_id)
        return read_used(text, attempt.attempt.started)


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


def _is_near(begun: str, started: datetime) -> bool:
    if not (begun.isascii() and begun.isdigit()):
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
