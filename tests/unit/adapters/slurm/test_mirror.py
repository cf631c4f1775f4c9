"""`SlurmScheduler` as the server uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from lattice.adapters.slurm import scheduler as scheduler_module
from lattice.adapters.slurm.scheduler import SlurmScheduler
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.scheduler import PastQuestion, Scope
from lattice.domain.source import LIVE
from lattice.domain.vcluster import Vclusters
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, RecordedSlurm, recorded, recording

Make = Callable[..., SlurmScheduler]


@pytest.fixture
def scheduler(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> SlurmScheduler:
    return SlurmScheduler(slurm.rest(), commands, vclusters, clock)


def by_id(scheduler: SlurmScheduler) -> dict[str, Allocation]:
    return {each.id: each for each in scheduler.live().cluster.allocations}


def changed_jobs(slurm: RecordedSlurm, job_id: int, **changes: Any) -> None:
    answer = recorded("jobs")
    for record in answer["jobs"]:
        if record["job_id"] == job_id:
            record.update(changes)
    slurm.serve("slurm", "jobs", json.dumps(answer).encode())
    slurm.last_change_s = 2**40


def test_before_the_first_reading_it_is_unavailable(scheduler: SlurmScheduler) -> None:
    with pytest.raises(Unavailable, match="not answered yet"):
        scheduler.live()


@pytest.mark.spec("ALLOC-1", "ALLOC-6")
async def test_a_reading_holds_jobs_nodes_switches_and_accounts(scheduler: SlurmScheduler) -> None:
    await scheduler.refresh()
    reading = scheduler.live()
    assert scheduler.errors == {}
    assert reading.source.name == LIVE
    assert reading.source.ok
    assert reading.source.age_s == 0
    assert len(reading.cluster.allocations) == 15
    assert {node.name: node.switch for node in reading.cluster.nodes} == {
        "n1": "s1",
        "n2": "s1",
        "n3": "s2",
    }
    assert reading.cluster.accounts.tenant_of("research") == "physics"
    assert {each.tenant for each in reading.cluster.allocations} == {"physics"}
    assert {each.vcluster for each in reading.cluster.allocations} == {"train"}


@pytest.mark.spec("ALLOC-1")
async def test_a_requeued_job_is_named_by_its_first_submit(scheduler: SlurmScheduler) -> None:
    await scheduler.refresh()
    requeued = by_id(scheduler)["11"]
    assert requeued.ref == "11@1794702383"
    assert [(each.number, each.state) for each in requeued.attempts] == [
        (1, State.REQUEUED),
        (2, State.RUNNING),
    ]


async def test_with_slurmdbd_away_its_first_submit_is_unknown_until_it_is_back(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    slurm.away.add("slurmdb")
    await scheduler.refresh()
    unknown = by_id(scheduler)["11"]
    assert unknown.first_submitted is None
    assert unknown.attempt == 2
    assert unknown.tenant == ""
    assert unknown.user == "alice"
    slurm.away.clear()
    clock.advance(31)
    await scheduler.refresh()
    assert by_id(scheduler)["11"].ref == "11@1794702383"
    assert by_id(scheduler)["11"].tenant == "physics"


async def test_a_new_tree_gives_new_tenants_at_once(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    moved = recorded("associations")
    for row in moved["associations"]:
        if row["account"] == "research" and row["user"] is None:
            row["parent_account"] = "biology"
    slurm.serve("slurmdb", "associations", json.dumps(moved).encode())
    asked = slurm.count("/slurm/v0.0.38/jobs")
    await scheduler._read_accounts()
    assert slurm.count("/slurm/v0.0.38/jobs") == asked
    assert {each.tenant for each in scheduler.live().cluster.allocations} == {"biology"}


@pytest.mark.spec("ALLOC-7")
async def test_with_slurmctld_away_the_last_reading_stays_and_ages(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    before = scheduler.live()
    slurm.away.add("slurm")
    clock.advance(5)
    await scheduler.refresh()
    young = scheduler.live()
    assert young.source.ok
    assert young.source.age_s == 5
    assert young.source.error is not None
    assert young.source.as_of == before.source.as_of
    clock.advance(6)
    old = scheduler.live()
    assert not old.source.ok
    assert old.source.age_s == 11
    assert old.cluster.allocations == before.cluster.allocations
    slurm.away.clear()
    await scheduler.refresh()
    assert scheduler.live().source.ok
    assert scheduler.live().source.error is None
    assert scheduler.errors == {}


@pytest.mark.spec("ALLOC-7")
async def test_slurmctld_down_behind_a_running_slurmrestd_is_the_same(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    slurm.last_change_s = 2**40
    for name in ("jobs", "nodes"):
        slurm.serve("slurm", name, recording("slurmctld-down"), 500)
    clock.advance(11)
    await scheduler.refresh()
    reading = scheduler.live()
    assert not reading.source.ok
    assert len(reading.cluster.allocations) == 15
    assert len(reading.cluster.nodes) == 3


@pytest.mark.spec("ALLOC-7")
async def test_while_slurmctld_is_away_one_request_at_a_time_waits_for_it(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    slurm.away.add("slurm")
    await scheduler._try("jobs", scheduler._poll_jobs)
    waiting = most = 0

    async def slow(*_: Any) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0)
        waiting -= 1
        raise ConnectionRefusedError

    slurm.get = slow  # type: ignore[method-assign]
    polls = (scheduler._poll_jobs, scheduler._poll_nodes)
    await asyncio.gather(*(scheduler._try(poll.__name__, poll) for poll in polls))
    assert most == 1


@pytest.mark.spec("ALLOC-7")
async def test_a_caller_does_not_wait_for_a_poll_without_an_answer(
    scheduler: SlurmScheduler,
    slurm: RecordedSlurm,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "_LONGEST_FRESH_S", 0.01)
    await scheduler.refresh()
    clock.advance(11)
    answered = asyncio.Event()
    answering = slurm.get

    async def late(target: str, headers: Any, limit_bytes: int) -> Any:
        await answered.wait()
        return await answering(target, headers, limit_bytes)

    slurm.get = late  # type: ignore[method-assign]
    assert not (await scheduler.fresh()).source.ok
    answered.set()
    await asyncio.gather(*scheduler._fresh_polls)
    assert scheduler.live().source.ok


async def test_an_unchanged_cluster_is_confirmed_and_not_built_again(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    slurm.last_change_s = int(clock.now().timestamp()) - 60
    await scheduler.refresh()
    first = scheduler.live().cluster
    clock.advance(2)
    await scheduler._read_jobs()
    again = scheduler.live().cluster
    assert again.allocations is first.allocations
    assert again.read_at == clock.now()
    assert scheduler.live().source.age_s == 0


async def test_the_attempt_does_not_jump_while_the_old_run_completes(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    """22.05 counts the restart already while the preempted run still completes."""
    await scheduler.refresh()
    changed_jobs(slurm, 1, job_state="COMPLETING", restart_cnt=1, end_time=1794702500)
    clock.advance(2)
    await scheduler._read_jobs()
    completing = by_id(scheduler)["1"]
    assert completing.attempt == 1
    assert completing.ref == "1@1794702382"
    changed_jobs(slurm, 1, job_state="PENDING", restart_cnt=1, submit_time=1794702510, nodes="")
    clock.advance(2)
    await scheduler._read_jobs()
    assert by_id(scheduler)["1"].attempt == 2


async def test_slurm_s_own_name_counts_whatever_people_are_shown(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> None:
    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock, shown_name="Alpha One")
    assert scheduler.cluster_name == "Alpha One"
    await scheduler.refresh()
    assert scheduler.errors == {}
    assert {each.cluster for each in scheduler.live().cluster.allocations} == {"lab"}
    assert {each.tenant for each in scheduler.live().cluster.allocations} == {"physics"}


async def test_without_the_name_nothing_is_read_and_the_reason_is_told(
    scheduler: SlurmScheduler, commands: RecordedCommands
) -> None:
    commands.configuration_text = "scontrol: something else\n"
    await scheduler.refresh()
    with pytest.raises(Unavailable, match="scontrol show config names no ClusterName"):
        scheduler.live()
    commands.configuration_text = "ClusterName             = lab\n"
    await scheduler.refresh()
    assert scheduler.cluster_name == "lab"
    assert scheduler.live().cluster.allocations


async def test_commands_that_are_missing_cost_switches_and_nothing_else(
    scheduler: SlurmScheduler, commands: RecordedCommands
) -> None:
    commands.missing = True
    await scheduler.refresh()
    reading = scheduler.live()
    assert set(scheduler.errors) == {"topology", "associations", "rights"}
    assert [node.switch for node in reading.cluster.nodes] == ["", "", ""]
    assert {each.tenant for each in reading.cluster.allocations} == {"physics"}


async def test_one_user_s_name_can_t_end_everybody_s_view(
    scheduler: SlurmScheduler, slurm: RecordedSlurm
) -> None:
    body = recording("jobs").replace(b'"quick"', b'"\xff\xfe"').replace(b'"sweep"', b'"a\nb"')
    slurm.serve("slurm", "jobs", body)
    await scheduler.refresh()
    assert len(by_id(scheduler)) == 15
    assert by_id(scheduler)["3"].name == "��"


async def test_a_defect_is_said_and_polling_goes_on(
    scheduler: SlurmScheduler,
    slurm: RecordedSlurm,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await scheduler.refresh()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(scheduler.jobs._polled, "_decode", broken)
    changed_jobs(slurm, 1, name="new")
    clock.advance(2)
    await scheduler.refresh()
    assert scheduler.errors["jobs"] == "internal error while reading jobs: ZeroDivisionError"
    assert "not foreseen" in caplog.text
    monkeypatch.undo()
    await scheduler.refresh()
    assert by_id(scheduler)["1"].name == "new"


async def test_past_is_asked_with_the_caller_s_scope(scheduler: SlurmScheduler) -> None:
    await scheduler.refresh()
    since = scheduler.live().source.as_of
    alice = await scheduler.past(PastQuestion(scope=Scope(frozenset({"alice"})), since=since))
    assert alice
    assert all(each.tenant == "physics" for each in alice)
    assert await scheduler.past(PastQuestion(scope=Scope(frozenset({"bob"})), since=since)) == ()


class Sleeper:
    """Stands in for sleeping: moves the clock, and ends the run after so many jobs polls."""

    def __init__(self, clock: ManualClock) -> None:
        self.waits: list[float] = []
        self._clock = clock
        self.enough = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) >= 50:
            self.enough.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)


async def test_run_polls_until_it_is_cancelled_and_leaves_no_task(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> None:
    sleeper = Sleeper(clock)
    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock, sleep=sleeper)
    before = asyncio.all_tasks()
    task = asyncio.create_task(scheduler.run(), name="slurm")
    await asyncio.wait_for(sleeper.enough.wait(), 60)
    names = {each.get_name() for each in asyncio.all_tasks()}
    parts = ("jobs", "nodes", "accounts", "associations", "topology", "origins")
    assert {f"slurm {part}" for part in parts} <= names
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert scheduler.live().source.ok
    assert set(sleeper.waits) == {2.0, 60.0, 600.0, 1.0}


async def test_polling_takes_at_most_a_tenth_of_the_time(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> None:
    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock)
    real = slurm.answers["/slurm/v0.0.38/jobs"]

    def slow(query: dict[str, str]) -> tuple[int, bytes]:
        clock.advance(3)
        return real(query)

    slurm.answer("slurm", "jobs", slow)
    await scheduler.refresh()
    assert scheduler._wait_for_jobs() == 2.0, "the first also paid for what is asked once"
    clock.advance(3600)  # then all of it is read again
    await scheduler.refresh()
    wait_s = scheduler._wait_for_jobs()
    assert wait_s == pytest.approx(27)
    clock.advance(wait_s)
    assert scheduler.live().source.ok, "a reading is not stale for being read seldom"
    clock.advance(61)
    assert not scheduler.live().source.ok


async def test_after_a_failure_it_is_tried_again_soon(
    scheduler: SlurmScheduler, slurm: RecordedSlurm
) -> None:
    slurm.away.add("slurm")
    await scheduler.refresh()
    assert scheduler._wait_for_jobs() == 2.0


@pytest.mark.parametrize("version", [f"v0.0.{number}" for number in range(39, 45)])
async def test_every_newer_schema_serves_the_port(
    commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock, version: str
) -> None:
    slurm = RecordedSlurm(version)
    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock)
    await scheduler.refresh()
    assert scheduler.errors == {}
    jobs = by_id(scheduler)
    assert jobs["1"].tenant == "physics"
    assert jobs["11"].ref == "11@1794702383"
    assert len(jobs["11"].attempts) == 2
    found = await scheduler.past(PastQuestion(scope=Scope(frozenset({"alice"}))))
    assert {"1", "6", "9", "11", "2_1", "14+1"} == {each.id for each in found}


async def test_one_more_look_is_shared_by_all_who_ask_at_once(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    clock.advance(1)
    polls = scheduler.jobs.counts.polls_total
    readings = await asyncio.gather(*(scheduler.fresh() for _ in range(50)))
    assert scheduler.jobs.counts.polls_total == polls + 1
    assert {each.source.age_s for each in readings} == {0.0}


async def test_one_more_look_is_not_taken_while_slurmctld_is_silent(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, clock: ManualClock
) -> None:
    await scheduler.refresh()
    slurm.answer("slurm", "jobs", lambda _query: (500, b'{"errors": [{"error_number": -1}]}'))
    clock.advance(61)
    await scheduler.fresh()
    polls = scheduler.jobs.counts.polls_total
    reading = await scheduler.fresh()
    assert scheduler.jobs.counts.polls_total == polls
    assert reading.source.error is not None
    assert not reading.source.ok


@pytest.mark.spec("ALLOC-1")
async def test_a_poll_that_met_a_stall_does_not_keep_a_new_job_from_being_found(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> None:
    async def wait(seconds: float) -> None:
        clock.advance(seconds)

    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock, sleep=wait)
    await scheduler.refresh()
    answering = slurm.answers["/slurm/v0.0.38/jobs"]

    def stalled(query: dict[str, str]) -> tuple[int, bytes]:
        clock.advance(3)
        return answering(query)

    slurm.last_change_s = 2**40
    slurm.answers["/slurm/v0.0.38/jobs"] = stalled
    await scheduler._read_jobs()
    slurm.answers["/slurm/v0.0.38/jobs"] = answering
    asked_at = clock.now()
    assert (await scheduler.fresh()).cluster.read_at >= asked_at


@pytest.mark.spec("OPS-4")
async def test_nodes_are_read_again_where_that_is_asked_for(
    scheduler: SlurmScheduler, slurm: RecordedSlurm
) -> None:
    await scheduler.refresh()
    asked = slurm.count("/slurm/v0.0.38/nodes")
    await scheduler.fresh()
    assert slurm.count("/slurm/v0.0.38/nodes") == asked
    await scheduler.fresh(nodes=True)
    assert slurm.count("/slurm/v0.0.38/nodes") == asked + 1


@pytest.mark.spec("OPS-4")
async def test_what_was_just_done_to_a_node_is_not_covered_by_an_answer_from_before(
    scheduler: SlurmScheduler, slurm: RecordedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scheduler.refresh()
    reading, order = scheduler.nodes.poll, list[str]()
    held = asyncio.Event()

    async def slow_at_first() -> bool:
        order.append("asked")
        if not held.is_set():
            await held.wait()
        changed = await reading()
        order.append("answered")
        return changed

    monkeypatch.setattr(scheduler.nodes, "poll", slow_at_first)
    before = asyncio.create_task(scheduler._poll_nodes())
    await asyncio.sleep(0)
    after = asyncio.create_task(scheduler.fresh(nodes=True))
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(before, after)
    assert order == ["asked", "answered"] * 2


@pytest.mark.spec("OPS-4")
async def test_nodes_do_not_wait_for_the_turn_of_the_list_of_jobs(
    slurm: RecordedSlurm, commands: RecordedCommands, vclusters: Vclusters, clock: ManualClock
) -> None:
    seen = list[int]()

    async def wait(seconds: float) -> None:
        seen.append(slurm.count("/slurm/v0.0.38/nodes"))
        clock.advance(seconds)

    scheduler = SlurmScheduler(slurm.rest(), commands, vclusters, clock, sleep=wait)
    await scheduler.refresh()
    asked = slurm.count("/slurm/v0.0.38/nodes")
    clock.advance(1)
    await scheduler.fresh(nodes=True)
    assert seen == [asked + 1]
