"""Requests and answers of the feature: pure data, the same in Python, JSON and the tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from lattice.base.operation import FieldRule
from lattice.domain.allocation import Allocation, State
from lattice.domain.last_output import LastOutput
from lattice.domain.sharing import ReadRecord, Share
from lattice.domain.slices import AllocationSlice
from lattice.domain.source import Source
from lattice.domain.training_run import TrainingRun

LARGEST_LIST = 1000
CURSOR_PATTERN = r"^([0-9]{1,12}\.[0-9]{1,10})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Filters by state and owner; `all` returns everything the caller's role may see.

    A `limit` of 0 stands for `LARGEST_LIST`.
    """

    states: Annotated[tuple[State, ...], FieldRule(name="state", longest=32)] = ()
    user: Annotated[str, FieldRule(longest=64)] = ""
    all: bool = False
    limit: Annotated[int, FieldRule(least=0, most=LARGEST_LIST)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery(ListQuery):
    """The same filters over a time range, in pages."""

    since: datetime | None = None
    until: datetime | None = None
    cursor: Annotated[str, FieldRule(pattern=CURSOR_PATTERN)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationList:
    """Allocations, newest first, with their sources.

    `next` is the cursor of the next page, or None on the last page.
    """

    allocations: tuple[Allocation, ...]
    sources: tuple[Source, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationCard:
    """One allocation in full, the rest of its array or het job, and older uses of its id.

    `shares` and `readers` are filled for the owner only.
    """

    allocation: Allocation
    sources: tuple[Source, ...]
    siblings: tuple[Allocation, ...] = ()
    earlier: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    readers: tuple[ReadRecord, ...] = ()
    last_output: LastOutput | None = None
    """Set only for a running allocation, on request; not for sensitive work."""
    runs: tuple[TrainingRun, ...] = ()
    """For the owner, on request; not of sensitive work, whose reads are recorded."""
    slices: tuple[AllocationSlice, ...] = ()
    """The GPU slices that it runs in."""
