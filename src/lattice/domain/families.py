"""Allocations of one name, put together from what runs and what is remembered. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from lattice.domain.allocation import Allocation, Attempt, Reason, Reference, State

RUNAWAY = Reason(
    "Runaway", "the accounting store counts it as unfinished, the controller no longer knows it"
)

# The two stores learn of a job at slightly different times; within this nothing is concluded.
_SETTLING = timedelta(seconds=30)


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
    """The live allocation with every attempt before this one that either of the two knows."""
    known = {each.number: each for each in (*live.attempts, *(past.attempts if past else ()))}
    before = tuple(known[number] for number in sorted(known) if number < live.attempt)
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
