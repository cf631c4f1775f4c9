"""The use case by itself: what is merged, what is cut, what is said when a part is silent."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, Role
from lattice.base.errors import NotFound, Unavailable, UsageError
from lattice.domain.allocation import Allocation, Array, Attempt, State
from lattice.domain.last_output import LastOutput
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.allocations.model import HistoryQuery, ListQuery
from lattice.features.allocations.service import AllocationService
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

ALICE = Actor(sub="1", user="alice")
BOB = Actor(sub="2", user="bob")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def scheduler(clock: ManualClock) -> InMemoryScheduler:
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    return scheduler


@pytest.fixture
def service(scheduler: InMemoryScheduler, clock: ManualClock) -> AllocationService:
    return AllocationService(scheduler, clock)


class _Outputs:
    """Nodes that have just seen output."""

    async def of(self, allocation: Allocation) -> LastOutput:
        return LastOutput(time=allocation.started, nodes=1, answered=1)


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("sensitive")
async def test_who_may_know_of_sensitive_work_learns_not_when_it_writes(
    scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    views = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))
    service = AllocationService(
        scheduler, clock, outputs=_Outputs(), sensitive=SensitiveWork(views)
    )
    scheduler.allocations = [
        allocation(1, "alice", "research", vcluster="vault"),
        allocation(2, "alice", "research"),
    ]
    admin = Actor(sub="9", role=Role.SYSTEM_ADMIN)
    for actor in (ALICE, admin):
        assert (await service.card(actor, "1", last_output=True)).last_output is None
        assert (await service.card(actor, "2", last_output=True)).last_output is not None


def _hour_ago(clock: ManualClock, hours: float = 1):
    return clock.now() - timedelta(hours=hours)


@pytest.mark.spec("ALLOC-1")
async def test_a_list_holds_the_unfinished_and_those_of_the_last_day(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    old, recent = _hour_ago(clock, 48), _hour_ago(clock)
    scheduler.allocations = [
        allocation(1, "alice", "research", submitted=old),
        allocation(2, "alice", "research", submitted=old, state=State.FAILED, ended=recent),
        allocation(3, "alice", "research", submitted=old, state=State.FAILED, ended=old),
    ]
    scheduler.remembered = [
        allocation(4, "alice", "research", submitted=old, state=State.COMPLETED, ended=recent),
        allocation(5, "alice", "research", submitted=old, state=State.COMPLETED, ended=old),
    ]
    answer = await service.recent(ALICE, ListQuery())
    assert {each.job_id for each in answer.allocations} == {1, 2, 4}


@pytest.mark.spec("ALLOC-1")
async def test_what_runs_counts_its_time_only_as_far_as_anyone_knows(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    scheduler.allocations = [allocation(1, "alice", "research", submitted=_hour_ago(clock))]
    assert (await service.recent(ALICE, ListQuery())).allocations[0].elapsed_s == 3600
    scheduler.down = True
    clock.advance(600)
    answer = await service.recent(ALICE, ListQuery())
    assert answer.allocations[0].elapsed_s == 3600
    assert answer.sources[0].age_s == 600
    assert not answer.sources[0].ok


@pytest.mark.spec("ALLOC-7")
async def test_a_job_the_controller_forgot_is_not_called_running(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    scheduler.remembered = [allocation(9, "alice", "research", submitted=_hour_ago(clock))]
    (seen,) = (await service.recent(ALICE, ListQuery())).allocations
    assert seen.state is State.UNKNOWN
    assert seen.elapsed_s is None
    card = await service.card(ALICE, "9")
    assert card.allocation.state is State.UNKNOWN
    # While the controller itself is silent nothing can be concluded from its silence.
    scheduler.down = True
    clock.advance(60)
    (seen,) = (await service.recent(ALICE, ListQuery())).allocations
    assert seen.state is State.RUNNING


async def test_a_job_younger_than_the_reading_is_taken_at_the_stores_word(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    scheduler.remembered = [
        allocation(9, "alice", "research", submitted=clock.now() - timedelta(seconds=2))
    ]
    (seen,) = (await service.recent(ALICE, ListQuery())).allocations
    assert seen.state is State.RUNNING


@pytest.mark.spec("ALLOC-7")
async def test_an_accounting_store_that_hangs_delays_no_live_data(
    service: AllocationService, scheduler: InMemoryScheduler
) -> None:
    scheduler.allocations = [allocation(1, "alice", "research")]
    scheduler.past_hangs = True
    answer = await service.recent(ALICE, ListQuery())
    assert [each.id for each in answer.allocations] == ["1"]
    assert [(each.name, each.ok) for each in answer.sources] == [
        ("slurmctld", True),
        ("slurmdbd", False),
    ]
    card = await service.card(ALICE, "1")
    assert card.allocation.state is State.RUNNING
    assert [each.error for each in card.sources] == [None, "slurmdbd gave no answer within 3 s"]
    # Without live data, and still before a client gives up.
    with pytest.raises(Unavailable):
        await service.card(ALICE, "777")
    with pytest.raises(Unavailable, match="no answer within 8 s"):
        await service.history(ALICE, HistoryQuery())


@pytest.mark.spec("AUTH-12")
async def test_absence_is_404_only_when_both_stores_speak(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    scheduler.allocations = [allocation(1, "alice", "research")]

    async def told(name: str) -> tuple[type[Exception], str]:
        with pytest.raises((NotFound, Unavailable)) as refusal:
            await service.card(BOB, name)
        return type(refusal.value), str(refusal.value).replace(name, "ID")

    assert await told("1") == await told("777")
    assert (await told("1"))[0] is NotFound
    scheduler.past_down = True
    assert await told("1") == await told("777")
    assert (await told("1"))[0] is Unavailable
    scheduler.past_down = False
    scheduler.down = True
    clock.advance(60)
    assert await told("1") == await told("777")
    assert (await told("1"))[0] is Unavailable


@pytest.mark.spec("AUTH-12")
async def test_the_store_is_asked_the_same_whoever_owns_it(
    service: AllocationService, scheduler: InMemoryScheduler
) -> None:
    scheduler.allocations = [allocation(1, "alice", "research")]
    for name in ("1", "777"):
        with pytest.raises(NotFound):
            await service.card(BOB, name)
    hers, nobodys = scheduler.questions
    assert hers.scope == nobodys.scope
    assert hers.scope.users == {"bob"}


async def test_an_answer_outside_the_scope_is_cut_even_if_the_store_gives_it(
    service: AllocationService, scheduler: InMemoryScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 22.05 answers `sacct --json -u bob` with everybody's jobs."""
    leak = allocation(1, "alice", "research", state=State.COMPLETED)

    async def leaky(_question, **_patience):
        return (leak,)

    monkeypatch.setattr(scheduler, "past", leaky)
    assert (await service.recent(BOB, ListQuery(all=True))).allocations == ()
    assert (await service.history(BOB, HistoryQuery(all=True))).allocations == ()
    with pytest.raises(NotFound):
        await service.card(BOB, "1")


@pytest.mark.spec("ALLOC-1")
async def test_attempts_before_this_one_come_from_the_store(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    first, second = _hour_ago(clock, 2), _hour_ago(clock)
    scheduler.allocations = [
        allocation(1, "alice", "research", submitted=second, first_submitted=first, attempt=2)
    ]
    before = Attempt(number=1, state=State.REQUEUED, submitted=first, started=first, ended=second)
    stale = Attempt(number=2, state=State.PENDING, submitted=second)
    scheduler.remembered = [
        allocation(
            1,
            "alice",
            "research",
            submitted=second,
            first_submitted=first,
            attempt=2,
            attempts=(before, stale),
        )
    ]
    card = await service.card(ALICE, "1")
    assert card.allocation.attempts[0] == before
    assert card.allocation.attempts[1].state is State.RUNNING
    assert card.earlier == ()


@pytest.mark.spec("ALLOC-1")
async def test_an_id_used_twice_means_the_newest_one_may_see(
    service: AllocationService, scheduler: InMemoryScheduler, clock: ManualClock
) -> None:
    elder, middle, younger = (_hour_ago(clock, hours) for hours in (30, 20, 10))
    over = {"state": State.COMPLETED, "ended": clock.now()}
    scheduler.remembered = [
        allocation(7, "alice", "research", submitted=elder, name="elder", **over),
        allocation(7, "alice", "research", submitted=middle, name="middle", **over),
        allocation(7, "bob", "genomics", submitted=younger, name="younger", **over),
    ]
    card = await service.card(ALICE, "7")
    assert card.allocation.name == "middle"
    (older,) = card.earlier
    assert (await service.card(ALICE, older)).allocation.name == "elder"
    assert (await service.card(BOB, "7")).earlier == ()
    with pytest.raises(NotFound):
        await service.card(ALICE, f"7@{int(younger.timestamp())}")


async def test_an_array_is_found_by_its_job_and_by_its_task(
    service: AllocationService, scheduler: InMemoryScheduler
) -> None:
    scheduler.allocations = [
        allocation(10 + task, "alice", "research", id=f"10_{task}", array=Array(10, task))
        for task in range(3)
    ]
    card = await service.card(ALICE, "10")
    assert card.allocation.id == "10_0"
    assert [each.id for each in card.siblings] == ["10_1", "10_2"]
    assert (await service.card(ALICE, "10_2")).siblings == ()


@given(st.integers(1, 7), st.integers(0, 30))
async def test_pages_hold_every_allocation_once_and_in_order(limit: int, count: int) -> None:
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock)
    service = AllocationService(scheduler, clock)
    scheduler.remembered = [
        allocation(
            job,
            "alice",
            "research",
            submitted=clock.now() - timedelta(minutes=job // 3),
            state=State.COMPLETED,
            ended=clock.now(),
        )
        for job in range(1, count + 1)
    ]
    seen: list[int] = []
    cursor = ""
    while True:
        page = await service.history(ALICE, HistoryQuery(limit=limit, cursor=cursor))
        assert len(page.allocations) <= limit
        seen += [each.job_id for each in page.allocations]
        if page.next is None:
            break
        cursor = page.next
    whole = await service.history(ALICE, HistoryQuery())
    assert seen == [each.job_id for each in whole.allocations]
    assert sorted(seen) == list(range(1, count + 1))


@pytest.mark.parametrize("cursor", ["x", "1", "1.", ".1", "-1.2", "٣.٣", "1.2.3", "9" * 40])
async def test_a_foreign_cursor_is_refused(
    service: AllocationService, scheduler: InMemoryScheduler, cursor: str
) -> None:
    with pytest.raises(UsageError):
        await service.history(ALICE, HistoryQuery(cursor=cursor))


async def test_a_name_that_is_none_is_refused(service: AllocationService) -> None:
    with pytest.raises(UsageError):
        await service.card(ALICE, "../../etc/passwd")


async def test_one_without_a_unix_user_owns_nothing(
    service: AllocationService, scheduler: InMemoryScheduler
) -> None:
    scheduler.allocations = [allocation(1, "", "research"), allocation(2, "alice", "")]
    assert (await service.recent(Actor(sub="x"), ListQuery())).allocations == ()
    assert (await service.recent(Actor(sub="x"), ListQuery(all=True))).allocations == ()
    admin = Actor(sub="x", role=Role.SYSTEM_ADMIN)
    assert len((await service.recent(admin, ListQuery(all=True))).allocations) == 2
