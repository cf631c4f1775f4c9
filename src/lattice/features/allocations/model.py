"""What the feature asks and answers: pure data, the same in Python, JSON and the tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lattice.domain.allocation import Allocation, Attempt, Reason, Reference, State
from lattice.domain.source import Source

LARGEST_LIST = 1000
REFERENCE_HINT = "Use 12345, 12345_7, 12345+1, or 12345@SUBMIT_TIME."
CURSOR_PATTERN = r"^([0-9]{1,12}\.[0-9]{1,10})?$"
RUNAWAY = Reason(
    "Runaway", "the accounting store counts it as unfinished, the controller no longer knows it"
)

# The two stores learn of a job at slightly different times; within this nothing is concluded.
_SETTLING = timedelta(seconds=30)


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
    """One allocation in full, the rest of its array or het job, and older uses of its id."""

    allocation: Allocation
    sources: tuple[Source, ...]
    siblings: tuple[Allocation, ...] = ()
    earlier: tuple[str, ...] = ()


def position(allocation: Allocation) -> tuple[int, int]:
    """Where an allocation stands in a list: by the submit of its last attempt, then by id."""
    return int(allocation.submitted.timestamp()), allocation.job_id


def newest_first(allocations: Iterable[Allocation]) -> list[Allocation]:
    """In the order people read them."""
    return sorted(allocations, key=position, reverse=True)


def with_elapsed(allocations: Iterable[Allocation], until: datetime) -> list[Allocation]:
    """Each with the time it has run, counted no further than anyone knows that it ran."""
    return [
        each
        if each.state is State.UNKNOWN or each.elapsed_s is not None
        else replace(each, elapsed_s=each.elapsed_at(until))
        for each in allocations
    ]


def with_attempts(live: Allocation, past: Allocation | None) -> Allocation:
    """The live allocation with the attempts the accounting store remembers before this one."""
    before = tuple(each for each in past.attempts if each.number < live.attempt) if past else ()
    current = Attempt(
        number=live.attempt,
        state=live.state,
        submitted=live.submitted,
        started=live.started,
        ended=live.ended,
        nodes=live.nodes,
        node_count=live.node_count,
        exit_code=live.exit_code,
    )
    first = live.first_submitted or (past.first_submitted if past else None)
    return replace(live, attempts=(*before, current), first_submitted=first)


def without_runaways(past: Iterable[Allocation], *, before: datetime) -> list[Allocation]:
    """Past rows, those corrected that the accounting store believes unfinished.

    Call it with rows that a current reading of the controller does not hold: a job submitted
    before that reading and unknown to it is not running, whatever the store says (Slurm calls
    it a runaway job). What became of it, nobody knows.
    """
    return [
        replace(each, state=State.UNKNOWN, reason=RUNAWAY, elapsed_s=None)
        if not each.state.finished and each.submitted < before - _SETTLING
        else each
        for each in past
    ]


def family(allocations: Iterable[Allocation], reference: Reference) -> list[list[Allocation]]:
    """Allocations of one name as families, newest first: one use of the id each.

    In a family the one that the name means comes first, then the rest of its array or het job.
    """
    families: dict[tuple[str, datetime], list[Allocation]] = {}
    for each in newest_first(allocations):
        families.setdefault((each.user, each.first_submitted or each.submitted), []).append(each)
    for members in families.values():
        members.sort(key=lambda each: (each.job_id != reference.job_id, each.job_id))
    return sorted(families.values(), key=lambda members: position(members[0]), reverse=True)
