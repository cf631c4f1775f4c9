"""Rows into allocations: the law, the recorded stories, and the doubtful cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.attempts import fold
from lattice.adapters.slurm.schema import PastRow
from lattice.domain.allocation import Allocation, Array, Heterogeneous, State

T0 = datetime(2026, 11, 1, tzinfo=UTC)


def row(
    state: State = State.COMPLETED,
    *,
    submit: float = 0,
    start: float | None = 1,
    end: float | None = 10,
    user: str = "alice",
    name: str = "train",
    job_id: int = 7,
    restarts: int | None = None,
    array: Array | None = None,
    het: Heterogeneous | None = None,
    nodes: str = "n1",
    sluid: str = "",
) -> PastRow:
    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else T0 + timedelta(seconds=seconds)

    submitted = T0 + timedelta(seconds=submit)
    return PastRow(
        Allocation(
            cluster="lab",
            id=str(job_id),
            job_id=job_id,
            name=name,
            user=user,
            account="research",
            tenant="physics",
            partition="batch",
            qos="",
            vcluster=None,
            state=state,
            submitted=submitted,
            first_submitted=submitted,
            started=at(start),
            ended=at(end),
            nodes=nodes,
            array=array,
            heterogeneous=het,
            sluid=sluid,
        ),
        restarts,
    )


@pytest.mark.spec("ALLOC-1")
def test_a_requeued_job_is_one_allocation_with_two_attempts() -> None:
    (folded,) = fold(
        [
            row(State.RUNNING, submit=20, start=22, end=None, nodes="n2"),
            row(State.REQUEUED, submit=0, start=1, end=18),
        ]
    )
    assert folded.state is State.RUNNING
    assert folded.attempt == 2
    assert folded.first_submitted == T0
    assert folded.submitted == T0 + timedelta(seconds=20)
    assert [(each.number, each.state, each.nodes) for each in folded.attempts] == [
        (1, State.REQUEUED, "n1"),
        (2, State.RUNNING, "n2"),
    ]


def test_a_single_run_needs_no_list_of_attempts() -> None:
    (folded,) = fold([row()])
    assert (folded.attempt, folded.attempts) == (1, ())


@pytest.mark.spec("ALLOC-1")
def test_an_id_used_again_is_another_allocation_even_by_the_same_owner() -> None:
    newer, older = fold([row(submit=0), row(submit=60, start=61, end=70)])
    assert newer.first_submitted == T0 + timedelta(seconds=60)
    assert older.first_submitted == T0
    assert newer.attempts == older.attempts == ()


@pytest.mark.spec("AUTH-12")
@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("restarts", [None, 0, 1, 5])
def test_two_owners_are_never_one_allocation(state: State, restarts: int | None) -> None:
    folded = fold([row(state, user="alice"), row(submit=11, user="bob", restarts=restarts)])
    assert sorted(each.user for each in folded) == ["alice", "bob"]
    assert all(not each.attempts for each in folded)


@pytest.mark.parametrize(
    "state", [State.REQUEUED, State.PREEMPTED, State.NODE_FAIL, State.BOOT_FAIL]
)
def test_what_slurm_starts_again_by_itself_goes_on(state: State) -> None:
    (folded,) = fold([row(state), row(submit=12, start=14, end=20)])
    assert folded.attempt == 2


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT])
def test_what_is_over_does_not_go_on_however_alike_the_next_one(state: State) -> None:
    assert len(fold([row(state), row(submit=12, start=14, end=20)])) == 2


@pytest.mark.parametrize(
    ("state", "gap", "parts"),
    [
        (State.NODE_FAIL, 60, 1),
        (State.NODE_FAIL, 2 * 3600, 2),
        (State.PREEMPTED, 3 * 3600, 2),
        (State.REQUEUED, 3 * 3600, 1),
        (State.REQUEUED, 8 * 86400, 2),
        (State.REQUEUED, -60, 2),
    ],
)
def test_the_next_run_is_submitted_when_the_last_one_ended(
    state: State, gap: float, parts: int
) -> None:
    assert len(fold([row(state, end=100), row(submit=100 + gap, start=None, end=None)])) == parts


def test_another_name_is_another_job_where_nothing_better_tells() -> None:
    assert len(fold([row(State.REQUEUED), row(submit=11, name="other")])) == 2
    assert len(fold([row(State.REQUEUED), row(submit=11, name="other", restarts=1)])) == 1


def test_a_row_that_slurmdbd_has_not_named_yet_goes_with_its_job() -> None:
    assert len(fold([row(State.REQUEUED, name="allocation"), row(submit=11)])) == 1
    assert len(fold([row(State.REQUEUED), row(submit=11, name="allocation")])) == 1


def test_the_restart_count_settles_it_where_it_is_told() -> None:
    assert len(fold([row(State.FAILED, restarts=0), row(submit=50, restarts=1)])) == 1
    assert len(fold([row(State.REQUEUED, restarts=0), row(submit=11, restarts=0)])) == 2


def test_runs_out_of_reach_leave_the_first_submit_unknown_and_the_count_right() -> None:
    (folded,) = fold([row(State.REQUEUED, restarts=2), row(submit=11, restarts=3)])
    assert folded.first_submitted is None
    assert folded.attempt == 4
    assert [each.number for each in folded.attempts] == [3, 4]


def test_a_run_still_open_in_the_store_before_another_use_of_the_id_is_unknown() -> None:
    lost, newer = sorted(
        fold([row(State.RUNNING, end=None), row(submit=500, user="bob")]),
        key=lambda each: each.submitted,
    )
    assert lost.state is State.UNKNOWN
    assert lost.ended is None
    assert newer.state is State.COMPLETED


def test_a_resized_run_is_one_run_from_its_first_start() -> None:
    (folded,) = fold(
        [
            row(State.RESIZING, start=1, end=50, nodes="n[1-4]"),
            row(State.COMPLETED, start=50, end=90, nodes="n[1-2]"),
        ]
    )
    assert folded.attempts == ()
    assert (folded.state, folded.nodes) == (State.COMPLETED, "n[1-2]")
    assert folded.started == T0 + timedelta(seconds=1)
    assert folded.ended == T0 + timedelta(seconds=90)


@pytest.mark.parametrize("sluid", ["", "s6XDM7R75DV400"])
@pytest.mark.parametrize("last_start", [2, 70])
def test_the_new_size_of_a_run_has_a_submit_time_of_its_own(sluid: str, last_start: float) -> None:
    """As 22.05, 24.11 and 26.05 write it; the start depends on whether the run has ended."""
    (folded,) = fold(
        [
            row(State.RESIZING, start=2, end=None, nodes="n[1-4]", sluid=sluid),
            row(State.RESIZING, submit=50, start=50, end=None, nodes="n[1-2]", sluid=sluid),
            row(State.COMPLETED, submit=70, start=last_start, end=90, nodes="n1", sluid=sluid),
        ]
    )
    assert folded.attempts == ()
    assert folded.first_submitted == folded.submitted == T0
    assert folded.started == T0 + timedelta(seconds=2)
    assert (folded.state, folded.nodes, folded.sluid) == (State.COMPLETED, "n1", sluid)


def test_a_run_requeued_within_a_second_is_another_by_its_unique_id() -> None:
    runs = [
        row(State.REQUEUED, start=0, end=0, restarts=0, sluid="s6XDM7R75DV400"),
        row(State.RUNNING, start=0, end=None, restarts=1, sluid="s6XDM7R75JBH00"),
    ]
    (folded,) = fold(runs)
    assert [each.sluid for each in folded.attempts] == ["s6XDM7R75DV400", "s6XDM7R75JBH00"]


def test_the_same_row_told_twice_counts_once() -> None:
    assert fold([row(), row()]) == fold([row()])


def test_tasks_and_components_do_not_mix() -> None:
    rows = [
        row(State.REQUEUED, array=Array(7, 1)),
        row(submit=11, array=Array(7, 2)),
        row(State.REQUEUED, job_id=8, het=Heterogeneous(8, 0)),
        row(submit=11, job_id=8, het=Heterogeneous(8, 1)),
    ]
    assert len(fold(rows)) == 4


def test_newest_come_first() -> None:
    folded = fold([row(job_id=number, submit=number % 5) for number in range(1, 9)])
    assert [(each.submitted, each.job_id) for each in folded] == sorted(
        ((each.submitted, each.job_id) for each in folded), reverse=True
    )


STATES = st.sampled_from(
    [
        State.REQUEUED,
        State.NODE_FAIL,
        State.COMPLETED,
        State.RUNNING,
        State.PENDING,
        State.CANCELLED,
    ]
)
ROWS = st.lists(
    st.builds(
        lambda state, submit, length, user, name, job_id, restarts, task: row(
            state,
            submit=submit,
            start=submit + 1,
            end=submit + length if state.finished or state is State.REQUEUED else None,
            user=user,
            name=name,
            job_id=job_id,
            restarts=restarts,
            array=task,
            nodes=f"{user}-{submit}",
        ),
        STATES,
        st.integers(0, 40),
        st.integers(1, 20),
        st.sampled_from(["alice", "bob", ""]),
        st.sampled_from(["train", "eval"]),
        st.integers(1, 2),
        st.none() | st.integers(0, 3),
        st.none() | st.just(Array(1, 4)),
    ),
    max_size=12,
)


@pytest.mark.spec("AUTH-12")
@given(ROWS)
def test_no_run_is_lost_doubled_or_given_to_another_owner(rows: list[PastRow]) -> None:
    # One submit time is one run, whatever number of rows tell of it.
    def run(each: Allocation) -> tuple[object, ...]:
        task = each.array.task_id if each.array else None
        return each.job_id, task, each.user, each.submitted

    told: Counter[tuple[object, ...]] = Counter()
    for folded in fold(rows):
        runs = folded.attempts or (folded,)
        task = folded.array.task_id if folded.array else None
        for attempt in runs:
            told[folded.job_id, task, folded.user, attempt.submitted] += 1
            assert attempt.nodes.startswith(f"{folded.user}-")
        submits = [attempt.submitted for attempt in runs]
        assert submits == sorted(submits)
        assert folded.submitted == submits[-1]
        assert folded.first_submitted in (None, submits[0])
        assert folded.attempt >= len(runs)
    assert told == Counter({run(each.allocation): 1 for each in rows})


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(rows: list[PastRow], random: object) -> None:
    unique = list({(_key(each)): each for each in rows}.values())
    shuffled = list(unique)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert set(map(_told, fold(shuffled))) == set(map(_told, fold(unique)))


def _key(each: PastRow) -> tuple[object, ...]:
    allocation = each.allocation
    return allocation.job_id, allocation.array, allocation.submitted


def _told(allocation: Allocation) -> Allocation:
    return replace(allocation)
