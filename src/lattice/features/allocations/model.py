"""What the feature asks and answers: pure data, the same in Python, JSON and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.allocation import Allocation, State
from lattice.domain.lastoutput import LastOutput
from lattice.domain.sharing import ReadRecord, Share
from lattice.domain.source import Source

LARGEST_LIST = 1000
CURSOR_PATTERN = r"^([0-9]{1,12}\.[0-9]{1,10})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which allocations: by state and owner; `all` reaches as far as the caller's role does.

    A `limit` of 0 is the largest there is.
    """

    states: frozenset[State] = frozenset()
    user: str = ""
    all: bool = False
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery(ListQuery):
    """The same over a stretch of time, in pages."""

    since: datetime | None = None
    until: datetime | None = None
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationList:
    """Allocations, newest first, with the word on where they come from.

    `next` is the cursor of the following page, present only if there is one.
    """

    allocations: tuple[Allocation, ...]
    sources: tuple[Source, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationCard:
    """One allocation in full, the rest of its array or het job, and older uses of its id.

    The owner is also told with whom it is shared, and who else has read what it wrote.
    """

    allocation: Allocation
    sources: tuple[Source, ...]
    siblings: tuple[Allocation, ...] = ()
    earlier: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    readers: tuple[ReadRecord, ...] = ()
    last_output: LastOutput | None = None
    """Of a running one, where it was asked for."""
