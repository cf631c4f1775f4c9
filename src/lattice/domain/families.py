"""Allocations of one name, merged from running jobs and the accounting store. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from lattice.domain.allocation import Allocation, Attempt, Reason, Reference, State

RUNAWAY = Reason(
    "Runaway", "the accounting store counts it as unfinished, the controller no longer knows it"
)

# The two stores learn of a job at slightly different times, so younger jobs are left as they are.
_SETTLING = timedelta(seconds=30)


def position(allocation: Allocation) -> tuple[int, int]:
    """The sort key of an allocation: the submit time of its last attempt, then the id."""
    return int(allocation.submitted.timestamp()), allocation.job_id


def newest_first(allocations: Iterable[Allocation]) -> list[Allocation]:
    """In the order in which people read them."""
    return sorted(allocations, key=position, reverse=True)


def with_elapsed(allocations: Iterable[Allocation], until: datetime) -> list[Allocation]:
    """Each with the time it has run, counted up to `until` at most."""
    return [
        each
        if each.state is State.UNKNOWN or each.elapsed_s is not None
        else replace(each, elapsed_s=each.elapsed_at(until))
        for each in allocations
    ]


def with_attempts(live: Allocation, past: Allocation | None) -> Allocation:
    """The live allocation with every earlier attempt that either of the two has."""
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
        sluid=live.sluid,
    )
    first = live.first_submitted or (past.first_submitted if past else None)
    return replace(live, attempts=(*before, current), first_submitted=first)


def without_runaways(past: Iterable[Allocation], *, before: datetime) -> list[Allocation]:
    """Past rows, with those corrected that the accounting store has as unfinished.

    Call it with rows that a current reading of the controller does not have. A job that was
    submitted before that reading and is unknown to it is not running (Slurm calls it a runaway
    job). Its true end is unknown.
    """
    return [
        replace(each, state=State.UNKNOWN, reason=RUNAWAY, elapsed_s=None)
        if not each.state.finished and each.submitted < before - _SETTLING
        else each
        for each in past
    ]


def family(allocations: Iterable[Allocation], reference: Reference) -> list[list[Allocation]]:
    """Allocations of one name as families, newest first: one use of the id each.

    The allocation that the name means comes first, then the rest of its array or het job.
    """
    families: dict[tuple[str, datetime], list[Allocation]] = {}
    for each in newest_first(allocations):
        families.setdefault((each.user, each.first_submitted or each.submitted), []).append(each)
    for members in families.values():
        members.sort(key=lambda each: (each.job_id != reference.job_id, each.job_id))
    return sorted(families.values(), key=lambda members: position(members[0]), reverse=True)
