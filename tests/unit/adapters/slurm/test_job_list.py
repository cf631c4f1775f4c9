"""Which list of jobs is read, and what rows lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.permission import Permission
from lattice.adapters.slurm.commands import CommandFailed, CommandMissing
from lattice.adapters.slurm.scheduler import SlurmReader, SlurmScheduler
from lattice.base.errors import NotFound
from lattice.domain.allocation import Allocation, State
from lattice.domain.scheduler import JobListSource
from lattice.domain.vcluster import Vclusters
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import (
    RecordedCommands,
    RecordedSlurm,
    recorded,
    running_job,
    squeue_job,
)

Make = Callable[..., SlurmScheduler]
JOBS = "/slurm/v0.0.38/jobs"


@pytest.fixture
def make(slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock) -> Make:
    def made(source: JobListSource = JobListSource.AUTO) -> SlurmScheduler:
        reader = SlurmReader(account="root", commands_user="lattice", job_list=source)
        return SlurmScheduler(slurm.rest(), commands, Vclusters(), clock, reader=reader)

    return made


def many_jobs(slurm: RecordedSlurm, commands: RecordedCommands, count: int = 2_000) -> None:
    """slurmctld says that it has so many, and squeue prints some of them."""
    answer = recorded("diag")
    answer["statistics"] |= {"jobs_pending": count - 10, "jobs_running": 10}
    slurm.serve("slurm", "diag", json.dumps(answer).encode())
    commands.jobs = [squeue_job(number) for number in range(1, 6)]


def live(scheduler: SlurmScheduler) -> dict[str, Allocation]:
    return {each.id: each for each in scheduler.live().cluster.allocations}


def record_of(number: int, **changes: Any) -> dict[str, Any]:
    """As slurmrestd has the job of `running_job`."""
    record: dict[str, Any] = next(each for each in recorded("jobs")["jobs"] if each["nodes"])
    return record | {"job_id": number, "start_time": 1795119544, "array_job_id": 0} | changes


def serve_job(slurm: RecordedSlurm, number: int, **changes: Any) -> None:
    body = json.dumps({"errors": [], "jobs": [record_of(number, **changes)]}).encode()
    slurm.serve("slurm", f"job/{number}", body)


async def test_few_jobs_come_from_slurmrestd(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    scheduler = make()
    await scheduler.refresh()
    assert len(live(scheduler)) == 15
    assert commands.squeue_asked == []


async def test_many_jobs_come_from_squeue_and_the_long_list_is_never_asked_for(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    many_jobs(slurm, commands)
    scheduler = make()
    await scheduler.refresh()
    assert sorted(live(scheduler)) == ["1", "2", "3", "4", "5"]
    assert slurm.count(JOBS) == 0
    assert scheduler.errors == {}


async def test_when_few_are_left_slurmrestd_prints_the_list_again(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    many_jobs(slurm, commands)
    scheduler = make()
    await scheduler.refresh()
    clock.advance(5)
    await scheduler.refresh()
    assert len(live(scheduler)) == 15
    assert not scheduler.jobs.is_long


@pytest.mark.spec("AUTH-12")
async def test_where_slurm_hides_jobs_from_the_commands_they_are_not_used(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    many_jobs(slurm, commands)
    commands.configuration_text = "ClusterName = lab\nPrivateData = jobs,usage\n"
    scheduler = make()
    await scheduler.refresh()
    assert commands.squeue_asked == []
    commands.admin_level_text = "Operator\n"
    again = make()
    await again.refresh()
    assert sorted(live(again)) == ["1", "2", "3", "4", "5"]


async def test_without_squeue_slurmrestd_prints_the_list(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    many_jobs(slurm, commands)
    commands.squeue_failure = CommandMissing("squeue can't be run: No such file or directory")
    scheduler = make()
    await scheduler.refresh()
    assert "can't be run" in scheduler.errors["jobs"]
    clock.advance(5)
    await scheduler.refresh()
    assert scheduler.errors == {}
    assert len(live(scheduler)) == 15


@pytest.mark.spec("ALLOC-7")
async def test_while_slurmctld_is_down_the_long_list_is_not_asked_for(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    many_jobs(slurm, commands)
    commands.jobs = [squeue_job(number) for number in range(1, 1_001)]
    scheduler = make()
    await scheduler.refresh()
    before = live(scheduler)
    text = "Unable to contact slurm controller (connect failure)"
    commands.squeue_failure = CommandFailed(f"squeue failed with 1: {text}", text)
    clock.advance(11)
    await scheduler.refresh()
    assert live(scheduler) == before
    assert not scheduler.live().source.ok
    assert text in (scheduler.live().source.error or "")
    assert slurm.count(JOBS) == 0


@pytest.mark.spec("ALLOC-1")
async def test_who_has_just_submitted_does_not_wait_for_the_long_list(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    scheduler = make(JobListSource.SQUEUE)
    commands.jobs = [squeue_job(1), squeue_job(2, UserName="bob")]
    await scheduler.refresh()
    commands.jobs.append(squeue_job(3))
    commands.squeue_asked.clear()
    reading = await scheduler.fresh(users={"alice"})
    assert sorted(each.id for each in reading.cluster.allocations) == ["1", "2", "3"]
    assert commands.squeue_asked == [("alice",)]


@pytest.mark.spec("ALLOC-1")
async def test_the_time_of_a_users_jobs_is_that_of_their_own_reading(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    scheduler = make(JobListSource.SQUEUE)
    commands.jobs = [squeue_job(1), squeue_job(2, UserName="bob")]
    await scheduler.refresh()
    whole_at = clock.now()
    clock.advance(4)
    reading = await scheduler.fresh(users={"alice"})
    assert (reading.source.as_of, reading.source.age_s) == (clock.now(), 0.0)
    # Of everybody's jobs that is not true.
    assert (scheduler.live().source.as_of, scheduler.live().source.age_s) == (whole_at, 4.0)
    commands.squeue_failure = CommandFailed("squeue failed with 1: no", "no")
    assert (await scheduler.fresh(users={"alice"})).source.as_of == whole_at


@pytest.mark.spec("ALLOC-1")
async def test_a_user_whose_jobs_were_just_read_is_told_of_no_older_list(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    scheduler = make(JobListSource.SQUEUE)
    commands.jobs = [squeue_job(1)]
    await scheduler.refresh()
    clock.advance(4)
    finder, alice = AllocationFinder(scheduler, clock), Actor(sub="sub-alice", user="alice")
    with pytest.raises(NotFound) as absent:
        await finder.find(alice, Permission.VIEW_ALLOCATIONS, "77")
    assert "`lattice status` lists yours" in absent.value.hint
    commands.squeue_failure = CommandFailed("squeue failed with 1: no", "no")
    with pytest.raises(NotFound) as absent:
        await finder.find(alice, Permission.VIEW_ALLOCATIONS, "77")
    assert "read a moment ago" in absent.value.hint


async def test_a_failed_reading_of_a_users_jobs_is_over_once_the_whole_list_was_read(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    scheduler = make(JobListSource.SQUEUE)
    commands.jobs = [squeue_job(1)]
    await scheduler.refresh()
    commands.squeue_failure = CommandFailed("squeue failed with 1: no", "no")
    await scheduler.fresh(users={"alice"})
    assert list(scheduler.errors) == ["jobs of single users"]
    clock.advance(2)
    commands.squeue_failure = None
    await scheduler.refresh()
    assert scheduler.errors == {}


@pytest.mark.spec("TOP-2")
async def test_the_gpus_of_a_job_are_read_by_its_id(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    gpus = {"tres-alloc": "cpu=1,gres/gpu=2"}
    commands.jobs = [running_job(1, **gpus), running_job(2), squeue_job(3, **gpus)]
    serve_job(slurm, 1, nodes="n1", gres_detail=["gpu:2(IDX:0-1)"])
    scheduler = make(JobListSource.SQUEUE)
    await scheduler.refresh()
    (held,) = live(scheduler)["1"].gpu_indices
    assert (held.node, held.indices) == ("n1", (0, 1))
    assert slurm.count("/slurm/v0.0.38/job/") == 1
    before = live(scheduler)["1"]
    clock.advance(5)
    await scheduler.refresh()
    assert slurm.count("/slurm/v0.0.38/job/") == 1
    assert live(scheduler)["1"] is before
    commands.jobs[0]["TimeLimit"] = "10:00"
    await scheduler.refresh()
    assert live(scheduler)["1"].gpu_indices == (held,)
    assert slurm.count("/slurm/v0.0.38/job/") == 1


async def test_the_id_of_a_large_array_is_not_asked_for(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    gpus = {"tres-alloc": "cpu=1,gres/gpu=1"}
    tasks = [running_job(8 + task, ArrayJobID="8", ArrayTaskID=str(task)) for task in range(1, 150)]
    commands.jobs = [*tasks, running_job(8, ArrayTaskID="0", **gpus)]
    scheduler = make(JobListSource.SQUEUE)
    await scheduler.refresh()
    assert live(scheduler)["8_0"].gpu_indices == ()
    assert slurm.count("/slurm/v0.0.38/job/8") == 0


@pytest.mark.spec("SRC-2")
async def test_a_job_that_was_resumed_has_not_run_while_it_was_suspended(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    now = int(clock.now().timestamp())
    start = {"StartTime": str(now - 100)}
    commands.jobs = [
        running_job(1, TimeUsed="1:10", **start),
        running_job(2, TimeUsed="1:40", **start),
    ]
    serve_job(slurm, 1, start_time=now - 100, suspend_time=now - 20, pre_sus_time=50)
    scheduler = make(JobListSource.SQUEUE)
    await scheduler.refresh()
    jobs = live(scheduler)
    assert (jobs["1"].suspended_s, jobs["1"].elapsed_at(clock.now())) == (30, 70)
    assert (jobs["2"].suspended_s, jobs["2"].elapsed_at(clock.now())) == (0, 100)


async def test_a_suspended_job_is_read_by_its_id_and_again_when_it_is_resumed(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    now = int(clock.now().timestamp())
    start = {"StartTime": str(now - 100)}
    times = {"start_time": now - 100, "pre_sus_time": 60, "suspend_time": now - 40}
    commands.jobs = [running_job(1, State="SUSPENDED", TimeUsed="1:00", **start)]
    serve_job(slurm, 1, job_state="SUSPENDED", **times)
    scheduler = make(JobListSource.SQUEUE)
    await scheduler.refresh()
    assert live(scheduler)["1"].state is State.SUSPENDED
    assert live(scheduler)["1"].elapsed_s == 60
    commands.jobs = [running_job(1, TimeUsed="1:00", **start)]
    serve_job(slurm, 1, **times | {"suspend_time": now - 5})
    await scheduler.refresh()
    assert live(scheduler)["1"].elapsed_s is None
    assert live(scheduler)["1"].suspended_s == 35


async def test_a_long_list_is_read_every_two_seconds_at_most(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    scheduler = make(JobListSource.SQUEUE)
    commands.jobs = [squeue_job(1)]
    for _ in range(2):
        await scheduler.refresh()
    scheduler.reload(0.2)
    assert scheduler._wait_for_jobs() == 2.0
    scheduler.reload(30.0)
    assert scheduler._wait_for_jobs() == 30.0


async def test_what_was_read_before_slurmrestd_failed_is_shown(
    make: Make, slurm: RecordedSlurm, commands: RecordedCommands, clock: ManualClock
) -> None:
    gpus = {"tres-alloc": "cpu=1,gres/gpu=2"}
    newest = str(1795119544 + 60)
    commands.jobs = [running_job(1, **gpus), running_job(2, StartTime=newest, **gpus)]
    slurm.serve("slurm", "job/1", b"no answer")
    serve_job(slurm, 2, nodes="n1", start_time=int(newest), gres_detail=["gpu:2(IDX:0-1)"])
    scheduler = make(JobListSource.SQUEUE)
    await scheduler.refresh()
    assert "details" in scheduler.errors
    clock.advance(5)
    await scheduler.refresh()
    assert live(scheduler)["2"].gpu_indices
    assert live(scheduler)["1"].gpu_indices == ()
