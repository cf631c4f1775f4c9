"""What every scheduler behind the port promises: the fake in memory and a real Slurm alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import pytest

from lab.laboratory import Lab
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, ExitCode, State, parse_reference
from lattice.domain.scheduler import JobListSource, PastQuestion, Scope
from lattice.domain.source import LIVE
from tests.contract.sites import InMemorySite, Site, SlurmSite, a_day_before
from tests.eventually import eventually_async

ALICE = Scope(users=frozenset({"alice"}))
BOB = Scope(users=frozenset({"bob"}))
EVERYTHING = Scope(everything=True)

T = TypeVar("T")


@pytest.fixture(
    params=[
        "in memory",
        pytest.param("slurm", marks=pytest.mark.lab),
        pytest.param("squeue", marks=[pytest.mark.lab, pytest.mark.long]),
    ]
)
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    if request.param == "in memory":
        yield InMemorySite()
        return
    lab = request.getfixturevalue("lab")
    lab.jobs.cancel_all()
    by_squeue = request.param == "squeue"
    slurm = SlurmSite(lab, JobListSource.SQUEUE if by_squeue else JobListSource.REST)
    try:
        yield slurm
    finally:
        await slurm.aclose()
        for part in ("slurmdbd", "slurmctld"):
            slurm.wake(part)
        lab.jobs.cancel_all()


def find(site: Site, name: str, scope: Scope = EVERYTHING) -> Allocation | None:
    found = [each for each in site.scheduler.live().cluster.visible(scope) if each.id == name]
    return found[0] if found else None


def state(site: Site, name: str) -> State | None:
    found = find(site, name)
    return found.state if found else None


async def past(site: Site, name: str, scope: Scope = EVERYTHING) -> tuple[Allocation, ...]:
    question = PastQuestion(scope=scope, reference=parse_reference(name))
    return await site.scheduler.past(question)


async def eventually(site: Site, told: Callable[[], Awaitable[T | None]]) -> T:
    """The accounting store learns a little later than the controller, and bit by bit."""
    for _ in range(240):
        found = await told()
        if found is not None:
            return found
        await site.pass_time(0.5)
        await site.until(lambda: True)
    raise AssertionError("the past never came to tell it")


async def remembered(
    site: Site, job: int | str, wanted: State, scope: Scope = EVERYTHING
) -> Allocation:
    live = find(site, str(job))

    async def told() -> Allocation | None:
        found = await past(site, str(job), scope)
        whole = found and found[0].state is wanted and (not live or found[0].name == live.name)
        return found[0] if whole else None

    return await eventually(site, told)


@pytest.mark.spec("ALLOC-1", "AUTH-7")
async def test_a_job_is_live_with_its_owner_project_and_tenant(site: Site) -> None:
    job = site.submit("alice", "train")
    await site.until(lambda: state(site, str(job)) is State.RUNNING)
    found = find(site, str(job), ALICE)
    assert found is not None
    assert (found.name, found.user, found.account, found.tenant) == (
        "train",
        "alice",
        "research",
        "physics",
    )
    assert (found.cluster, found.vcluster, found.partition) == ("lab", "hpc", "batch")
    assert found.started is not None
    assert found.submitted <= found.started
    assert (found.ended, found.expected_start, found.exit_code) == (None, None, None)
    assert found.nodes
    assert find(site, str(job), BOB) is None
    assert find(site, str(job), Scope(accounts=frozenset({"research"}))) == found


@pytest.mark.spec("ALLOC-1")
async def test_one_more_look_finds_what_was_submitted_a_moment_ago(site: Site) -> None:
    await site.until(lambda: site.scheduler.live().source.ok)
    job = site.submit("alice", "young")
    reading = await site.scheduler.fresh()
    assert str(job) in {each.id for each in reading.cluster.visible(ALICE)}


@pytest.mark.spec("ALLOC-2")
async def test_what_waits_says_why_in_words(site: Site) -> None:
    job = site.submit("alice", "held", held=True)
    await site.until(lambda: state(site, str(job)) is State.PENDING)
    found = find(site, str(job))
    assert found is not None
    assert found.reason is not None
    assert found.reason.code == "JobHeldUser"
    assert "held by its owner" in found.reason.words
    assert (found.started, found.ended, found.nodes) == (None, None, "")


@pytest.mark.spec("ALLOC-1", "ALLOC-6")
async def test_a_job_that_ended_is_found_in_the_past_by_its_owner_only(site: Site) -> None:
    good = site.submit("alice", "good", ends=0)
    bad = site.submit("alice", "bad", ends=3)
    await site.until(
        lambda: (state(site, str(good)), state(site, str(bad))) == (State.COMPLETED, State.FAILED)
    )
    live = find(site, str(bad))
    assert live is not None
    assert live.exit_code == ExitCode(3)
    assert live.ended is not None

    old = await remembered(site, str(bad), State.FAILED, ALICE)
    assert old.ref == live.ref
    assert (old.started, old.ended) == (live.started, live.ended)
    assert old.exit_code in (ExitCode(3), None), "unknown where the store lost it, never wrong"
    assert (await remembered(site, str(good), State.COMPLETED)).exit_code == ExitCode(0)

    assert await past(site, str(bad), BOB) == ()
    assert await past(site, "4000000", ALICE) == ()
    assert await past(site, f"{bad}@1", ALICE) == ()
    assert [each.ref for each in await past(site, live.ref, ALICE)] == [live.ref]


@pytest.mark.spec("ALLOC-6", "AUTH-7")
async def test_a_stretch_of_the_past_holds_what_the_scope_covers_newest_first(site: Site) -> None:
    jobs = [site.submit("alice", f"a{each}", ends=0) for each in range(2)]
    jobs += [site.submit("bob", "b", ends=0)]
    await site.until(lambda: all(state(site, str(job)) is State.COMPLETED for job in jobs))
    since = a_day_before(_submitted(site, jobs[0]))

    async def ids(scope: Scope, **more: object) -> list[str]:
        question = PastQuestion(scope=scope, since=since, **more)  # type: ignore[arg-type]
        found = await site.scheduler.past(question)
        moments = [each.submitted for each in found]
        assert moments == sorted(moments, reverse=True)
        return [each.id for each in found]

    alice, bob, first = str(jobs[0]), str(jobs[2]), _submitted(site, jobs[0])

    async def all_told() -> bool | None:
        return {str(job) for job in jobs} <= set(await ids(EVERYTHING)) or None

    await eventually(site, all_told)
    assert {alice, str(jobs[1])} <= set(await ids(ALICE))
    assert bob not in await ids(ALICE)
    assert bob in await ids(BOB)
    assert alice not in await ids(BOB)
    assert bob in await ids(Scope(accounts=frozenset({"genomics"})))
    assert {alice, bob} <= set(await ids(EVERYTHING))
    assert {alice, bob} <= set(await ids(Scope(users=frozenset({"alice", "bob"}))))
    assert await ids(Scope()) == []
    assert await ids(ALICE, until=a_day_before(first)) == []
    assert alice not in await ids(ALICE, states=frozenset({State.FAILED}))


def _submitted(site: Site, job: int) -> datetime:
    found = find(site, str(job))
    assert found is not None
    return found.submitted


@pytest.mark.spec("ALLOC-1")
async def test_a_requeued_job_keeps_its_name_and_shows_both_attempts(site: Site) -> None:
    job = site.submit("alice", "again")
    await site.until(lambda: state(site, str(job)) is State.RUNNING)
    first = find(site, str(job))
    assert first is not None
    site.requeue(job)

    def again() -> bool:
        found = find(site, str(job))
        return (
            found is not None
            and found.attempt == 2
            and found.state is State.RUNNING
            and len(found.attempts) == 2
        )

    await site.until(again)
    second = find(site, str(job))
    assert second is not None
    assert second.ref == first.ref
    assert second.submitted > first.submitted
    assert [each.number for each in second.attempts] == [1, 2]
    assert [each.state for each in second.attempts] == [State.REQUEUED, State.RUNNING]
    old = await remembered(site, job, State.RUNNING, ALICE)
    assert old.ref == first.ref
    assert old.attempt == 2
    assert [each.submitted for each in old.attempts] == [first.submitted, second.submitted]


@pytest.mark.spec("ALLOC-1", "ALLOC-6")
async def test_a_stretch_with_several_requeued_jobs(site: Site) -> None:
    """Their earlier runs are asked for by id, all in one question."""
    jobs = [site.submit(user, "open") for user in ("alice", "bob")]
    await site.until(lambda: all(state(site, str(job)) is State.RUNNING for job in jobs))
    question = PastQuestion(scope=EVERYTHING, since=a_day_before(_submitted(site, jobs[0])))
    for job in jobs:
        site.requeue(job)

    async def all_told() -> bool | None:
        found = await site.scheduler.past(question)
        twice = {each.id for each in found if len(each.attempts) == 2}
        return {str(job) for job in jobs} <= twice or None

    await eventually(site, all_told)


@pytest.mark.spec("ALLOC-1")
async def test_array_tasks_are_named_by_array_and_task(site: Site) -> None:
    job = site.submit("alice", "sweep", array="1-2")
    names = (f"{job}_1", f"{job}_2")
    await site.until(lambda: all(state(site, name) is State.RUNNING for name in names))
    task = find(site, names[1])
    assert task is not None
    assert task.array is not None
    assert (task.array.job_id, task.array.task_id) == (job, 2)
    live = site.scheduler.live().cluster.visible(ALICE)
    whole = [each.id for each in live if parse_reference(str(job)).matches(each)]
    assert set(whole) == set(names)
    for name in names:
        await remembered(site, name, State.RUNNING)
    assert {each.id for each in await past(site, str(job), ALICE)} == set(names)
    assert [each.id for each in await past(site, names[1], ALICE)] == [names[1]]


@pytest.mark.long
@pytest.mark.spec("AUTH-12", "ALLOC-1")
async def test_an_id_used_twice_is_two_allocations_and_each_owner_sees_one(site: Site) -> None:
    job = site.submit("alice", "same", ends=0)
    await site.until(lambda: state(site, str(job)) is State.COMPLETED)
    older = await remembered(site, str(job), State.COMPLETED)
    site.use_ids_again_from(job)
    assert site.submit("bob", "same", ends=0) == job
    await site.until(lambda: state(site, str(job)) is State.COMPLETED)
    newer = await remembered(site, str(job), State.COMPLETED, BOB)

    assert newer.ref != older.ref
    assert [each.ref for each in await past(site, str(job), ALICE)] == [older.ref]
    assert [each.ref for each in await past(site, str(job), BOB)] == [newer.ref]

    async def both() -> list[str] | None:
        # The same was asked some seconds ago, and that answer is shared for a while.
        refs = [each.ref for each in await past(site, str(job))]
        return refs if len(refs) > 1 else None

    assert await eventually(site, both) == [newer.ref, older.ref]
    assert [each.ref for each in await past(site, older.ref)] == [older.ref]
    assert await past(site, older.ref, BOB) == ()
    assert await past(site, newer.ref, ALICE) == ()


@pytest.mark.long
@pytest.mark.spec("ALLOC-1")
async def test_an_id_used_twice_by_the_same_owner_is_two_allocations(site: Site) -> None:
    job = site.submit("alice", "same", ends=0)
    await site.until(lambda: state(site, str(job)) is State.COMPLETED)
    older = await remembered(site, str(job), State.COMPLETED)
    site.use_ids_again_from(job)
    assert site.submit("alice", "same", ends=0) == job
    await site.until(lambda: state(site, str(job)) is State.COMPLETED)
    newest = find(site, str(job))
    assert newest is not None

    async def both() -> list[str] | None:
        refs = [each.ref for each in await past(site, str(job), ALICE)]
        return refs[:2] if newest.ref in refs else None

    assert await eventually(site, both) == [newest.ref, older.ref]


@pytest.mark.spec("ALLOC-6")
async def test_nodes_switches_and_accounts_are_told(site: Site) -> None:
    await site.until(lambda: site.scheduler.live().source.ok)
    cluster = site.scheduler.live().cluster
    nodes = {node.name: node for node in cluster.nodes}
    assert {"n1", "n2", "n3"} <= set(nodes)
    assert nodes["n1"].switch == nodes["n2"].switch != nodes["n3"].switch
    assert nodes["n1"].cpus > 0
    assert nodes["n1"].gpus == 4
    leaves = [
        each.name for each in cluster.topology.switches if each.level == 0 and "n3" in each.nodes
    ]
    assert leaves == [nodes["n3"].switch]
    assert cluster.accounts.tenant_of("research") == "physics"
    assert cluster.accounts.tenant_of("genomics") == "biology"
    assert cluster.accounts.coordinated_by("carol") == {"theory"}
    assert cluster.accounts.tenants_of("alice") == {"physics"}


@pytest.mark.long
@pytest.mark.spec("ALLOC-7")
async def test_with_the_controller_away_the_last_state_stays_and_says_its_age(site: Site) -> None:
    job = site.submit("alice", "train", ends=0)
    await site.until(lambda: state(site, str(job)) is State.COMPLETED)
    await remembered(site, str(job), State.COMPLETED)
    fresh = site.scheduler.live().source
    assert (fresh.name, fresh.ok, fresh.error) == (LIVE, True, None)

    site.silence("slurmctld")
    await site.pass_time(11)
    await site.until(lambda: not site.scheduler.live().source.ok)
    stale = site.scheduler.live().source
    assert stale.age_s is not None
    assert stale.age_s > 10
    assert stale.error
    assert state(site, str(job)) is State.COMPLETED
    assert [each.id for each in await past(site, str(job), ALICE)] == [str(job)]

    site.wake("slurmctld")
    await site.until(lambda: site.scheduler.live().source.ok)
    assert site.scheduler.live().source.error is None


@pytest.mark.long
@pytest.mark.spec("ALLOC-7")
async def test_with_the_accounting_store_away_only_the_past_is(site: Site) -> None:
    job = site.submit("alice", "train")
    await site.until(lambda: state(site, str(job)) is State.RUNNING)
    site.silence("slurmdbd")
    await site.pass_time(6)
    with pytest.raises(Unavailable):
        await past(site, str(job), ALICE)
    await site.until(lambda: site.scheduler.live().source.ok)
    found = find(site, str(job))
    assert found is not None
    assert found.tenant == "physics"
    site.wake("slurmdbd")
    await remembered(site, str(job), State.RUNNING, ALICE)


_VARIETY = """
sbatch -N2 --gres=gpu:1 -J 'a b
7|c' --comment 'hey|you' --wrap 'sleep 600'
sbatch --array=1-5%2 -J held -t 10 --hold --wrap true
sbatch --array=1-4%1 -o '%x-%A_%a.txt' --wrap 'sleep 600'
sbatch --array=7,9 --wrap 'sleep 600'
sbatch -d afterany:$(squeue -h -n held -o %F | head -n 1) --wrap true
sbatch -t 1-2:03:04 --wrap 'exit 3'
sbatch --wrap 'kill -9 $$'
sbatch --wrap 'sleep 1' : --wrap 'sleep 1'
sbatch --begin=now+1hour -n 4 --mem-per-cpu=1G --wrap true
sbatch -J paused --wrap 'sleep 600'
"""


@pytest.mark.lab
@pytest.mark.spec("ALLOC-1", "ALLOC-2")
async def test_both_lists_of_slurm_make_the_same_allocations(lab: Lab) -> None:
    lab.jobs.cancel_all()
    lab.run_as("alice", ["bash", "-c", _VARIETY], check=True)
    paused = int(lab.run_as("alice", ["squeue", "-h", "-n", "paused", "-o", "%A"]).stdout)
    lab.jobs.wait_state(paused, "RUNNING")
    lab.ctl(["scontrol", "suspend", str(paused)])
    both = [SlurmSite(lab, each) for each in (JobListSource.REST, JobListSource.SQUEUE)]
    rest, squeue = both
    try:

        async def same() -> bool:
            for site in both:
                await site.scheduler.fresh()
            return _cards(rest) == _cards(squeue)

        for site in both:
            await site.until(lambda site=site: len(_cards(site)) >= 10)
        # Slurm may change a job between the two readings.
        await eventually_async(same, pause_s=1.0)
        states = {each.state for each in _cards(rest).values()}
        assert states >= {State.RUNNING, State.PENDING, State.SUSPENDED, State.FAILED}
        assert any(each.gpu_indices for each in _cards(squeue).values())
    finally:
        for site in both:
            await site.aclose()
        lab.jobs.cancel_all()


def _cards(site: SlurmSite) -> dict[int, Allocation]:
    """Without what `squeue` does not print: how many tasks of an array may run at once."""
    return {each.job_id: _comparable(each) for each in site.scheduler.live().cluster.allocations}


def _comparable(each: Allocation) -> Allocation:
    if each.array is None:
        return each
    waiting = each.array.waiting.partition("%")[0]
    return replace(each, array=replace(each.array, waiting=waiting))
