"""What an attempt used, according to `sacct`.

The line of a job is followed by those of its steps. Another run of the same job id has its own
line; its start time distinguishes it.
"""

from __future__ import annotations

import re
from datetime import datetime

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.domain.accounted import AccountedUse
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodejobs import CLOCK_SLACK_S

_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_COLUMNS = 5


class SlurmAccounting:
    """`Accounting` by Slurm's command."""

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
    told = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60 + float(seconds)
    # Without a gathering plugin Slurm reports zero.
    return told or None


def _bytes(text: str) -> float | None:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1]) * _UNITS[found[2]] or None
