"""The port to what a job used by Slurm's own accounting: the second source of reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lattice.domain.attempts import JobAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedUse:
    """The use of one attempt. None was not accounted; a zero is a zero of Slurm."""

    cpu_seconds: float | None = None
    largest_task_bytes: float | None = None
    """Resident memory of the largest task. It is a node's only if each node has one task."""
    energy_joules: float | None = None
    """The energy of its nodes, if Slurm measures it."""


class Accounting(Protocol):
    """slurmdbd, as `sacct` queries it."""

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        """The use of this attempt, or None. Raises `Unavailable`."""
