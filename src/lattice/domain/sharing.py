"""Who besides the owner may read a job's output, by which right, and the record of reads. Pure.

A share is the owner's permission for one other user to read one allocation for a limited time. It
covers its card and its output, nothing more. Read records show the owner what others have read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from lattice.domain.allocation import Allocation, BadReference, parse_reference
from lattice.domain.source import Source


class Standing(StrEnum):
    """The right by which somebody reads, in the words that the owner is shown."""

    OWNER = "owner"
    SHARED = "shared"
    COORDINATOR = "coordinator"
    TENANT_ADMIN = "tenant admin"
    SYSTEM_ADMIN = "system admin"
    REVIEWER = "compliance reviewer"
    """Reads the output of its tenant's sensitive work."""


class ReadKind(StrEnum):
    """How output or measurements were read."""

    LIST = "list"
    """The streams and their lengths: recorded, but not counted as a read."""
    READ = "read"
    FOLLOW = "follow"
    DOWNLOAD = "download"
    MEASURE = "measure"
    """Measurements, once."""
    OBSERVE = "observe"
    """Measurements or alerts as they come."""

    @property
    def act(self) -> str:
        """Its name in the journal."""
        return _ACTS.get(self, f"{self.value} output")


_ACTS = {ReadKind.MEASURE: "read measurements", ReadKind.OBSERVE: "follow measurements"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One allocation, or all of an array or het job, for one user until a time."""

    allocation: str
    """As the owner named it, with the time of its first submit, because an id may be reused."""
    owner: str
    user: str
    since: datetime
    until: datetime

    def covers(self, allocation: Allocation, now: datetime) -> bool:
        """True while its user may read that allocation."""
        if not (self.owner and self.owner == allocation.user and self.until > now):
            return False
        try:
            reference = parse_reference(self.allocation)
        except BadReference:
            return False
        # Without the time it could mean a later use of the same id.
        return reference.submitted is not None and reference.matches(allocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """One reader's reads of one allocation within one hour."""

    allocation: str
    reader: str
    standing: Standing
    first: datetime
    last: datetime
    reads: int = 0
    follows: int = 0
    downloads: int = 0

    @property
    def times(self) -> int:
        return self.reads + self.follows + self.downloads


class Shares(Protocol):
    """The current shares, as last read; never waits."""

    @property
    def source(self) -> Source:
        """Whether the shares are current."""

    def with_user(self, user: str) -> tuple[Share, ...]:
        """The shares that let this user read."""

    def of_owner(self, owner: str) -> tuple[Share, ...]:
        """The shares that this owner has given."""

    async def newest_with(self, user: str) -> tuple[Share, ...]:
        """The same as `with_user`, read now. Raises `Unavailable`."""


class ReadNotes(Protocol):
    """Where reads by others are recorded for the owner."""

    async def note(
        self,
        reader: str,
        standing: Standing,
        allocation: Allocation,
        kind: ReadKind,
        *,
        goes_on: bool = False,
        audited: bool = False,
    ) -> None:
        """Record a read, and return when it is stored. Raises `Unavailable`.

        `goes_on`: not another read but the continuation of a recorded one. `audited`: the audit log
        has it already.
        """

    async def of(self, allocations: Iterable[Allocation]) -> tuple[ReadRecord, ...]:
        """The records of these allocations, newest first. Raises `Unavailable`."""
