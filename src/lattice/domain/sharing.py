"""Who but the owner may read what a job wrote, by which right, and the word on who did. Pure.

A share is the owner's permission for one other user, for a while, to read one allocation: its
card and its output, nothing more. A read record is what the owner is shown of others' reads.
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
    """By which right somebody reads; the words are those that the owner is shown."""

    OWNER = "owner"
    SHARED = "shared"
    COORDINATOR = "coordinator"
    TENANT_ADMIN = "tenant admin"
    SYSTEM_ADMIN = "system admin"


class Way(StrEnum):
    """How output was read."""

    LIST = "list"
    """Which streams there are and how long each is: noted, and not counted as a read."""
    READ = "read"
    FOLLOW = "follow"
    DOWNLOAD = "download"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One allocation, or all of an array or het job, for one user until a moment."""

    allocation: str
    """As the owner named it, with the time of its first submit: an id alone may be used again."""
    owner: str
    user: str
    since: datetime
    until: datetime

    def covers(self, allocation: Allocation, now: datetime) -> bool:
        """True while it lets its user read that allocation."""
        if not (self.owner and self.owner == allocation.user and self.until > now):
            return False
        try:
            reference = parse_reference(self.allocation)
        except BadReference:
            return False
        # Without the time it could come to mean a later use of the same id.
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
        """How often, in whatever way."""
        return self.reads + self.follows + self.downloads


class Shares(Protocol):
    """What is shared now, as last seen: never waits, and says whether it is current."""

    @property
    def source(self) -> Source:
        """Whether what is in sight is current."""

    def with_user(self, user: str) -> tuple[Share, ...]:
        """What others let this user read."""

    def of_owner(self, owner: str) -> tuple[Share, ...]:
        """What this owner lets others read."""

    async def newest_with(self, user: str) -> tuple[Share, ...]:
        """The same as `with_user`, read now. Raises `Unavailable`."""


class ReadNotes(Protocol):
    """Where reads by others are written down for the owner."""

    async def note(
        self,
        reader: str,
        standing: Standing,
        allocation: Allocation,
        way: Way,
        *,
        goes_on: bool = False,
    ) -> None:
        """Write it down, and return when it is written. Raises `Unavailable`.

        `goes_on`: not another read but one that was noted before and lasts.
        """

    async def of(self, allocations: Iterable[Allocation]) -> tuple[ReadRecord, ...]:
        """What was noted of these, newest first. Raises `Unavailable`."""
