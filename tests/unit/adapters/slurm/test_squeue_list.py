"""A long list of jobs: what is decoded again, and whose jobs are read alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from lattice.adapters.slurm.commands import CommandFailed
from lattice.adapters.slurm.poller import PollCounts
from lattice.adapters.slurm.squeue_list import RowsRefused, SqueueJobs
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, Array, State
from lattice.domain.allocation_index import AllocationIndex
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, running_job, squeue_job


@pytest.fixture
def counts() -> PollCounts:
    return PollCounts()


@pytest.fixture
def squeue(
    commands: RecordedCommands, clock: ManualClock, placing: Placing, counts: PollCounts
) -> SqueueJobs:
    return SqueueJobs(commands, clock, lambda: placing, counts, lambda job: job)


def by_id(jobs: SqueueJobs) -> dict[str, Allocation]:
    return {each.id: each for each in jobs.index.allocations}


async def test_only_changed_rows_are_decoded_again(
    squeue: SqueueJobs, commands: RecordedCommands, counts: PollCounts
) -> None:
    commands.jobs = [squeue_job(number) for number in range(1, 101)]
    assert await squeue.poll()
    before = by_id(squeue)
    commands.jobs[41] = running_job(42)
    commands.jobs.pop(6)
    commands.jobs.append(squeue_job(101))
    counts.records_decoded_total = 0
    assert await squeue.poll()
    after = by_id(squeue)
    assert counts.records_decoded_total == 2
    assert before.keys() - after.keys() == {"7"}
    assert after["42"].state is State.RUNNING
    assert {each for each in before.keys() & after.keys() if before[each] is not after[each]} == {
        "42"
    }


async def test_a_reading_without_changes_keeps_the_list(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [squeue_job(1), squeue_job(2, Name="(null)", JobID="")]
    assert await squeue.poll()
    before = squeue.index.allocations
    assert [each.id for each in before] == ["1"]
    assert not await squeue.poll()
    assert squeue.index.allocations is before
    commands.jobs.clear()
    assert await squeue.poll()
    assert squeue.index.allocations == ()


async def test_a_record_that_loses_tasks_is_made_again(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [squeue_job(8, ArrayTaskID=str(task)) for task in range(1, 6)]
    await squeue.poll()
    assert by_id(squeue)["8"].array == Array(8, None, "1-5")
    commands.jobs[1] = running_job(9, ArrayJobID="8", ArrayTaskID="2")
    assert await squeue.poll()
    assert {each: job.array for each, job in by_id(squeue).items()} == {
        "8": Array(8, None, "1,3-5"),
        "8_2": Array(8, 2),
    }
    commands.jobs.append(squeue_job(8, ArrayTaskID="7"))
    assert await squeue.poll()
    assert by_id(squeue)["8"].array == Array(8, None, "1,3-5,7")
    assert not await squeue.poll()


@pytest.mark.spec("ALLOC-1")
async def test_the_jobs_of_one_user_are_read_alone(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [squeue_job(1), squeue_job(2, UserName="bob"), squeue_job(3)]
    await squeue.poll()
    bobs = by_id(squeue)["2"]
    commands.jobs = [running_job(1), squeue_job(4), running_job(2, UserName="bob")]
    assert await squeue.read_users({"alice"})
    assert commands.squeue_asked[-1] == ("alice",)
    assert sorted(by_id(squeue)) == ["1", "2", "4"]
    assert by_id(squeue)["1"].state is State.RUNNING
    assert by_id(squeue)["2"] is bobs
    assert not await squeue.read_users({"alice"})


class _Held(RecordedCommands):
    """Takes a reading of all at once, and hands it out later."""

    def __init__(self) -> None:
        super().__init__()
        self.release = asyncio.Event()
        self.taken = asyncio.Event()

    async def job_rows(
        self,
        environment: Mapping[str, str],
        users: Iterable[str] = (),
        *,
        timeout_s: float,
        states: str = "all",
    ) -> bytes:
        printed = await super().job_rows(environment, users, timeout_s=timeout_s, states=states)
        if not tuple(users):
            self.taken.set()
            await self.release.wait()
        return printed


async def test_an_older_list_does_not_replace_the_newer_jobs_of_a_user(
    clock: ManualClock, placing: Placing, counts: PollCounts
) -> None:
    commands = _Held()
    squeue = SqueueJobs(commands, clock, lambda: placing, counts, lambda job: job)
    commands.jobs = [squeue_job(1), squeue_job(2, UserName="bob")]
    whole = asyncio.create_task(squeue.poll())
    await commands.taken.wait()
    clock.advance(1)
    commands.jobs = [running_job(1), squeue_job(3), running_job(2, UserName="bob")]
    await squeue.read_users({"alice"})
    commands.release.set()
    await whole
    assert {each: job.state for each, job in by_id(squeue).items()} == {
        "1": State.RUNNING,
        "2": State.PENDING,
        "3": State.PENDING,
    }
    clock.advance(1)
    commands.jobs = [running_job(2, UserName="bob")]
    await squeue.poll()
    assert {each: job.state for each, job in by_id(squeue).items()} == {"2": State.RUNNING}


async def test_an_older_release_has_no_sluid(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [running_job(1)]
    form = commands.jobs[0].keys()
    commands.squeue_fields = frozenset(form) | {
        *("ArrayTaskID", "HetJobID", "HetJobOffset", "PreemptTime"),
    }
    await squeue.poll()
    assert [each.sluid for each in squeue.index.allocations] == [""]
    asked = len(commands.squeue_asked)
    await squeue.poll()
    assert len(commands.squeue_asked) == asked + 1


async def test_a_user_whom_the_machine_does_not_know_has_no_jobs(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.squeue_failure = CommandFailed("squeue failed", "squeue: error: Invalid user: eve")
    assert not await squeue.read_users({"eve"})
    commands.squeue_failure = CommandFailed("squeue failed", "Unable to contact slurm controller")
    with pytest.raises(Unavailable):
        await squeue.read_users({"eve"})


async def test_output_that_is_none_changes_nothing(
    squeue: SqueueJobs, commands: RecordedCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.jobs = [squeue_job(1)]
    await squeue.poll()
    before = squeue.index.allocations

    async def garbage(*_: object, **__: object) -> bytes:
        return b"slurm_load_jobs error\n"

    monkeypatch.setattr(commands, "job_rows", garbage)
    with pytest.raises(RowsRefused):
        await squeue.poll()
    assert squeue.index.allocations is before


async def test_marks_are_replaced_after_some_minutes_and_after_a_failure(
    squeue: SqueueJobs, commands: RecordedCommands, clock: ManualClock
) -> None:
    commands.jobs = [squeue_job(1), squeue_job(2)]
    formats: list[str] = []
    rows = commands.job_rows

    async def noted(environment: Mapping[str, str], *given: Any, **named: Any) -> bytes:
        formats.append(environment["SQUEUE_FORMAT2"])
        return await rows(environment, *given, **named)

    commands.job_rows = noted  # type: ignore[method-assign]
    assert await squeue.poll()
    before = squeue.index
    assert not await squeue.poll()
    clock.advance(301)
    assert not await squeue.poll()
    commands.squeue_failure = CommandFailed("squeue failed", "Unable to contact slurm controller")
    with pytest.raises(Unavailable):
        await squeue.poll()
    commands.squeue_failure = None
    assert not await squeue.poll()
    first, again, later, failed, after = formats
    assert first == again
    assert later == failed
    assert len({first, later, after}) == 3
    assert squeue.index is before


async def test_a_list_that_was_read_elsewhere_is_followed_by_that_of_squeue(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [squeue_job(1), squeue_job(2)]
    await squeue.poll()
    elsewhere = AllocationIndex().next(squeue.index.allocations)
    await squeue.forget(elsewhere)
    commands.jobs = [squeue_job(2), squeue_job(3)]
    assert not await squeue.read_users({"alice"})
    assert squeue.index is elsewhere
    assert await squeue.poll()
    assert sorted(by_id(squeue)) == ["2", "3"]
    change = squeue.index.since(elsewhere)
    assert {each.id for each in change.gone} == {"1", "2"}


async def test_data_from_elsewhere_is_applied_to_the_jobs_that_are_named(
    squeue: SqueueJobs, commands: RecordedCommands
) -> None:
    commands.jobs = [squeue_job(1), squeue_job(2)]
    await squeue.poll()
    before = by_id(squeue)
    await squeue.replace(lambda job: replace(job, tenant="physics"), [before["2"]])
    assert by_id(squeue)["1"] is before["1"]
    assert by_id(squeue)["2"].tenant == "physics"
    await squeue.replace(lambda job: replace(job, tenant="biology"))
    assert {each.tenant for each in squeue.index.allocations} == {"biology"}
    assert not await squeue.poll()
