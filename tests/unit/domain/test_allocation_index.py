"""`AllocationIndex`: made from the one before it, it answers as one that is made anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.allocation import Allocation, Array, Attempt, Heterogeneous, State
from lattice.domain.allocation_index import (
    AllocationIndex,
    AllocationTally,
    ChangeCursor,
    ChosenJobs,
    JobChanges,
)
from tests.fakes.cluster import allocation

AT = datetime(2026, 11, 1, tzinfo=UTC)
USERS, ACCOUNTS = ("alice", "bob", ""), ("genomics", "physics", "")
NODES = ("n1", "n[1-3]", "", "(")


@st.composite
def records(draw: st.DrawFn) -> Allocation:
    number = draw(st.integers(1, 6))
    made = allocation(
        number, draw(st.sampled_from(USERS)), draw(st.sampled_from(ACCOUNTS)), submitted=AT
    )
    before = Attempt(number=1, state=State.NODE_FAIL, submitted=AT, nodes="n4")
    return replace(
        made,
        nodes=draw(st.sampled_from(NODES)),
        array=draw(st.sampled_from((None, Array(9, 1)))),
        heterogeneous=draw(st.sampled_from((None, Heterogeneous(8, 1)))),
        attempts=draw(st.sampled_from(((), (before,)))),
    )


def answers(index: AllocationIndex) -> dict[str, list[int]]:
    """Which objects it finds by what."""
    found = {f"user {each}": index.of_user(each) for each in USERS}
    found |= {f"account {each}": index.of_account(each) for each in ACCOUNTS}
    found |= {f"job {each}": index.of_job(each) for each in range(10)}
    found |= {f"node n{each}": index.on_node(f"n{each}") for each in range(6)}
    return {what: sorted(map(id, these)) for what, these in found.items()}


def compared(before: Iterable[Allocation], now: Iterable[Allocation]) -> JobChanges:
    ids_before, ids_now = set(map(id, before)), set(map(id, now))
    return JobChanges(
        added=tuple(each for each in now if id(each) not in ids_before),
        gone=tuple(each for each in before if id(each) not in ids_now),
    )


@given(pool=st.lists(records(), min_size=1, max_size=8), data=st.data())
def test_an_index_of_many_readings_answers_as_a_new_one(
    pool: list[Allocation], data: st.DataObject
) -> None:
    chosen = st.lists(st.sampled_from(pool), unique_by=id, max_size=len(pool))
    index = AllocationIndex()
    for reading in data.draw(st.lists(chosen, max_size=6)):
        differing = index.changed(compared(index.allocations, reading))
        index = index.next(reading)
        assert sorted(map(id, index.allocations)) == sorted(map(id, reading))
        assert sorted(map(id, differing.allocations)) == sorted(map(id, reading))
        assert answers(differing) == answers(index)
        assert answers(index) == answers(AllocationIndex().next(reading))


@given(pool=st.lists(records(), min_size=1, max_size=8), data=st.data())
def test_a_difference_leads_from_one_reading_to_a_later_one(
    pool: list[Allocation], data: st.DataObject
) -> None:
    chosen = st.lists(st.sampled_from(pool), unique_by=id, max_size=len(pool))
    first = index = AllocationIndex().next(data.draw(chosen))
    for reading in data.draw(st.lists(chosen, max_size=6)):
        index = index.next(reading)
    change = index.since(first)
    left = {id(each) for each in first.allocations} - {id(each) for each in change.gone}
    assert left | {id(each) for each in change.added} == {id(each) for each in index.allocations}


def test_an_unchanged_reading_is_the_same_index() -> None:
    one = allocation(1, "alice", "genomics", submitted=AT)
    index = AllocationIndex().next([one])
    assert index.next([one]) is index
    assert index.since(index) == JobChanges()


@pytest.mark.parametrize("readings", [9, 200])
def test_who_missed_many_readings_gets_the_difference_too(readings: int) -> None:
    first = index = AllocationIndex().next([allocation(1, "alice", "genomics", submitted=AT)])
    for number in range(readings):
        index = index.next([allocation(number + 2, "alice", "genomics", submitted=AT)])
    assert index.since(first) == JobChanges(index.allocations, first.allocations)


def test_between_indexes_of_two_clusters_everything_differs() -> None:
    one = AllocationIndex().next([allocation(1, "alice", "genomics", submitted=AT)])
    other = AllocationIndex().next([allocation(2, "bob", "genomics", submitted=AT)])
    assert one.since(other) == JobChanges(one.allocations, other.allocations)
    assert other.since(one) == JobChanges(other.allocations, one.allocations)


def test_a_cursor_gives_each_change_once() -> None:
    one, other = (allocation(number, "alice", "genomics", submitted=AT) for number in (1, 2))
    cursor, first = ChangeCursor(), AllocationIndex().next([one])
    assert cursor.changes(first) == JobChanges((one,))
    assert cursor.changes(first) == JobChanges()
    assert cursor.changes(first.next([other])) == JobChanges((other,), (one,))


@given(pool=st.lists(records(), min_size=1, max_size=8), data=st.data())
def test_a_tally_counts_as_a_walk_over_all(pool: list[Allocation], data: st.DataObject) -> None:
    chosen = st.lists(st.sampled_from(pool), unique_by=id, max_size=len(pool))
    tally, index = AllocationTally(_keys), AllocationIndex()
    # Some readings are missed.
    for reading, missed in data.draw(st.lists(st.tuples(chosen, st.booleans()), max_size=20)):
        index = index.next(reading)
        if not missed:
            walked = Counter(key for each in reading for key in _keys(each))
            assert tally.of(index) == walked


def _keys(each: Allocation) -> tuple[str, ...]:
    return (each.user, each.account)


def test_chosen_jobs_are_those_of_the_newest_reading() -> None:
    first, second, third = (
        allocation(each, "alice", "physics", submitted=AT) for each in (1, 2, 3)
    )
    chosen = ChosenJobs(lambda job: job.job_id > 1)
    index = AllocationIndex().next((first, second))
    assert list(chosen.of(index)) == [second]
    index = index.next((first, third))
    assert list(chosen.of(index)) == [third]
