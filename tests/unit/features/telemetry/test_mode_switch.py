"""The owner switches how closely a job is measured; who may read it sees it; nobody else does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.allocation_finder import AllocationFinder
from lattice.base.errors import JobEnded, NotFound, Unavailable, UsageError
from lattice.domain.allocation import Array, State
from lattice.domain.sharing import ReadKind, Standing
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.model import Telemetry, TelemetryOrder
from lattice.features.telemetry.service.mode_switch import TelemetrySwitching
from lattice.features.telemetry.service.modes import MODES, AgreedModes
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.manual_clock import ManualClock
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="1", user="alice")
BOB = Actor(sub="2", user="bob")
ADMIN = Actor(sub="3", user="root", role=Role.SYSTEM_ADMIN)
READER = Actor(sub="1", user="alice", role=Role.READ_ONLY)


class Site:
    def __init__(self, usual: Mode = Mode.PROD) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.job = allocation(1, "alice", "research")
        self.scheduler.allocations = [self.job, allocation(2, "bob", "genomics")]
        self.state = InMemoryStateStore(self.clock)
        self.parts = sharing_parts(self.state)
        self.acts: list[tuple[str, str, str, str]] = []
        self.modes = AgreedModes(
            self.state,
            InMemoryStateView(self.state, MODES),
            self.clock,
            lambda: None,
            usual=usual,
            debug_most=3,
        )
        self.service = TelemetrySwitching(
            AllocationFinder(self.scheduler, self.clock, self.parts.shares),
            self.modes,
            self.parts.notes,
            self.clock,
            self,
        )

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.acts.append((act, target, sub, detail))


@pytest.fixture
def site() -> Site:
    return Site()


def order(mode: Mode = Mode.DEBUG, duration_s: int = 0, name: str = "1") -> TelemetryOrder:
    return TelemetryOrder(id=name, mode=mode, duration_s=duration_s)


@pytest.mark.spec("WATCH-3")
async def test_debug_lasts_half_an_hour_if_nothing_is_said(site: Site) -> None:
    told = await site.service.switch(ALICE, order())
    assert (told.allocation, told.mode, told.interval_s) == ("1", Mode.DEBUG, 1.0)
    assert told.until == site.clock.now() + timedelta(minutes=30)
    assert (told.set_by, told.debug_now, told.debug_most) == ("alice", 1, 3)
    assert await site.service.telemetry(ALICE, "1") == told
    assert site.acts == [("telemetry", site.job.ref, "1", "debug for 30 min")]


@pytest.mark.spec("WATCH-3")
async def test_back_to_the_usual_is_as_if_nobody_had_switched(site: Site) -> None:
    before = await site.service.telemetry(ALICE, "1")
    await site.service.switch(ALICE, order(duration_s=7200))
    assert await site.service.switch(ALICE, order(Mode.PROD)) == before
    assert before.set_by == ""


@pytest.mark.spec("WATCH-3")
@pytest.mark.parametrize("actor", [BOB, ADMIN, READER])
async def test_only_the_owner_switches(site: Site, actor: Actor) -> None:
    with pytest.raises(NotFound, match="1"):
        await site.service.switch(actor, order())
    assert site.acts == []
    assert site.modes.of(site.job.ref).mode is Mode.PROD


@pytest.mark.spec("AUTH-12")
async def test_anothers_and_nobodys_are_one_answer(site: Site) -> None:
    async def switch(actor: Actor, name: str) -> Telemetry:
        return await site.service.switch(actor, order(name=name))

    for ask in (site.service.telemetry, switch):
        told = []
        for name in ("1", "777"):
            with pytest.raises(NotFound) as absent:
                await ask(BOB, name)
            told.append((absent.value.message.replace(name, "ID"), absent.value.hint))
        assert told[0] == told[1]


@pytest.mark.spec("AUTH-7")
async def test_who_may_read_it_sees_how_closely_it_is_measured(site: Site) -> None:
    await site.service.switch(ALICE, order())
    assert (await site.service.telemetry(ADMIN, "1")).mode is Mode.DEBUG


@pytest.mark.parametrize("duration_s", [-5, 1, 9, 24 * 3600 + 1])
async def test_not_for_ever_and_not_for_nothing(site: Site, duration_s: int) -> None:
    with pytest.raises(UsageError, match="can't last"):
        await site.service.switch(ALICE, order(duration_s=duration_s))
    with pytest.raises(UsageError, match="usual"):
        await site.service.switch(ALICE, order(Mode.PROD, 600))


async def test_what_is_over_is_not_switched(site: Site) -> None:
    site.scheduler.allocations = []
    site.scheduler.remembered = [
        allocation(1, "alice", "research", state=State.COMPLETED, ended=site.clock.now())
    ]
    with pytest.raises(JobEnded, match="over"):
        await site.service.switch(ALICE, order())


async def test_one_whose_beginning_is_not_known_yet_has_no_name_to_switch(site: Site) -> None:
    site.scheduler.allocations = [allocation(1, "alice", "research", first_submitted=None)]
    with pytest.raises(Unavailable, match="first submitted"):
        await site.service.switch(ALICE, order())


@pytest.mark.spec("WATCH-3")
async def test_of_an_array_one_task_is_named(site: Site) -> None:
    site.scheduler.allocations = [
        allocation(10 + task, "alice", "research", id=f"10_{task}", array=Array(10, task))
        for task in range(3)
    ]
    with pytest.raises(UsageError, match="3 parts"):
        await site.service.switch(ALICE, order(name="10"))
    told = await site.service.switch(ALICE, order(name="10_1"))
    assert told.allocation == "10_1"
    assert (await site.service.telemetry(ALICE, "10_2")).mode is Mode.PROD


@pytest.mark.spec("WATCH-3", "AUTH-7")
async def test_in_audit_the_owner_sees_who_looked(site: Site) -> None:
    await site.parts.notes.note("root", Standing.SYSTEM_ADMIN, site.job, ReadKind.READ)
    assert (await site.service.telemetry(ALICE, "1")).readers == ()
    told = await site.service.switch(ALICE, order(Mode.AUDIT))
    assert (told.interval_s, told.until) == (30.0, None)
    assert [(each.reader, each.reads) for each in told.readers] == [("root", 1)]
    # Who else looks is nobody's business but hers.
    assert (await site.service.telemetry(ADMIN, "1")).readers == ()
