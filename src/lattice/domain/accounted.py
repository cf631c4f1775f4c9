"""The port to what Slurm's own accounting says a job used: the second source of reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lattice.domain.attempts import JobAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedUse:
    """Of one attempt; None was not accounted for. A zero of Slurm's means just that."""

    cpu_seconds: float | None = None
    largest_task_bytes: float | None = None
    """Resident memory of its largest task: no node's, unless each has one task."""
    energy_joules: float | None = None
    """Of its nodes, where Slurm measures it."""


class Accounting(Protocol):
    """slurmdbd, as `sacct` asks it."""

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        """What it has of this attempt; None if nothing. Raises `Unavailable`."""
