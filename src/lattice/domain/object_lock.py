"""Whether a bucket keeps its objects: its object lock, as S3 has it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class LockMode(StrEnum):
    """Who may delete an object before its time."""

    COMPLIANCE = "COMPLIANCE"
    """Nobody."""
    GOVERNANCE = "GOVERNANCE"
    """Whoever has a certain right."""


@dataclass(frozen=True, slots=True)
class ObjectLock:
    """The retention that a bucket gives to each new object. `mode` is None without one."""

    mode: LockMode | None = None
    days: float = 0.0

    def weakness(self, least_days: float) -> str:
        """What is missing of a lock in compliance mode of at least so many days; else empty."""
        if self.mode is None:
            return "has no object lock with a default retention: who has its key can delete"
        if self.mode is LockMode.GOVERNANCE:
            return "is locked in governance mode: an administrator of the store can delete"
        # A calendar has leap years, and a retention of years is given in days here.
        if self.days < least_days:
            return f"keeps objects for {self.days:g} days, and {least_days:g} are wanted"
        return ""


class LockReader(Protocol):
    """Reads the object lock of one bucket."""

    @property
    def bucket(self) -> str: ...

    async def read(self) -> ObjectLock:
        """Ask the store. Raises `Unavailable`, also if the key may not ask."""
