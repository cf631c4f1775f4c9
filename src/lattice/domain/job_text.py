"""The port to what an ended job wrote, for the server's own jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JobText:
    """The output of a job so far."""

    text: str
    complete: bool
    """The job has ended, and nothing will follow."""


class JobTexts(Protocol):
    """Reads the output of jobs."""

    async def of(self, name: str, user: str) -> JobText:
        """The standard output of a job of this user. Raises `LatticeError`."""
