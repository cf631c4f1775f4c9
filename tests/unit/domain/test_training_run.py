"""Which runs belong to an allocation: by its job, its cluster and its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lattice.domain.allocation import Attempt, State
from lattice.domain.training_run import StoredTraining, runs_of
from tests.fakes.cluster import allocation

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def stored(started: datetime, ended: datetime | None = None, **tags: str) -> StoredTraining:
    named = {"slurm.job.id": "42", "slurm.cluster.name": "lab"}
    named |= {name.replace("_", "."): value for name, value in tags.items()}
    return StoredTraining(
        id="r1",
        name="fit",
        experiment="vision",
        user="alice",
        status="finished" if ended else "running",
        started=started,
        ended=ended,
        tags=named,
    )


def attempts_found(run: StoredTraining, *attempts: Attempt, state: State = State.RUNNING) -> object:
    ended = attempts[-1].ended
    job = allocation(
        42, "alice", "research", submitted=NOON, attempts=attempts, state=state, ended=ended
    )
    found = runs_of(job, [run], NOON + 60 * MINUTE)
    return found[0].attempts if found else None


def attempt(number: int, begin: int, end: int | None = None) -> Attempt:
    return Attempt(
        number=number,
        state=State.RUNNING if end is None else State.PREEMPTED,
        submitted=NOON,
        started=NOON + begin * MINUTE,
        ended=None if end is None else NOON + end * MINUTE,
    )


def test_several_runs_of_one_allocation_keep_their_order() -> None:
    job = allocation(42, "alice", "research", submitted=NOON)
    fit, test = stored(NOON + MINUTE), stored(NOON + 9 * MINUTE)
    found = runs_of(job, [test, fit], NOON + 10 * MINUTE)
    assert [each.started for each in found] == [test.started, fit.started]
    assert {each.allocation for each in found} == {job.ref}


@pytest.mark.parametrize(
    "run",
    [
        stored(NOON + MINUTE, slurm_job_id="43"),
        stored(NOON + MINUTE, slurm_job_id=""),
        stored(NOON + MINUTE, slurm_job_id="４２"),
        stored(NOON + MINUTE, slurm_job_id="0x2a"),
        stored(NOON + MINUTE, slurm_job_id="9" * 5000),
        stored(NOON + MINUTE, slurm_cluster_name="other"),
        stored(NOON - 60 * MINUTE),
        stored(NOON + 60 * MINUTE),
    ],
    ids=[
        "another job",
        "no job",
        "other digits",
        "hexadecimal",
        "a huge number",
        "another cluster",
        "an earlier use of the id",
        "a later use of the id",
    ],
)
def test_a_run_of_something_else_is_left_out(run: StoredTraining) -> None:
    job = allocation(
        42, "alice", "research", submitted=NOON, ended=NOON + 20 * MINUTE, state=State.COMPLETED
    )
    assert runs_of(job, [run], NOON + 90 * MINUTE) == ()


def test_a_run_without_a_cluster_belongs_to_the_only_one() -> None:
    job = allocation(42, "alice", "research", submitted=NOON)
    assert len(runs_of(job, [stored(NOON, slurm_cluster_name="")], NOON)) == 1


def test_a_resumed_run_has_all_its_attempts() -> None:
    run = stored(NOON + 2 * MINUTE, NOON + 40 * MINUTE)
    shown = attempts_found(run, attempt(1, 1, 10), attempt(2, 20, 30), attempt(3, 35, 45))
    assert shown == (1, 2, 3)


def test_a_run_of_one_attempt_has_that_alone() -> None:
    shown = attempts_found(
        stored(NOON + 21 * MINUTE, NOON + 29 * MINUTE), attempt(1, 1, 10), attempt(2, 20)
    )
    assert shown == (2,)


def test_a_killed_run_of_a_finished_job_does_not_go_on() -> None:
    shown = attempts_found(
        stored(NOON + 2 * MINUTE),
        attempt(1, 1, 10),
        attempt(2, 20, 30),
        state=State.FAILED,
    )
    assert shown == (1,)


def test_an_attempt_that_ended_within_the_second_of_the_start_counts() -> None:
    """Slurm names the end 12:10:00 for all of that second."""
    began = NOON + 10 * MINUTE + timedelta(milliseconds=400)
    run = stored(began, NOON + 40 * MINUTE)
    assert attempts_found(run, attempt(1, 1, 10), attempt(2, 20, 30)) == (1, 2)
    later = stored(NOON + 10 * MINUTE + timedelta(seconds=1), NOON + 40 * MINUTE)
    assert attempts_found(later, attempt(1, 1, 10), attempt(2, 20, 30)) == (2,)
