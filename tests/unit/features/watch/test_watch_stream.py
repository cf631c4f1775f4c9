"""A watched job from the queue to its end: what is told, in which order, to whom, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.limits import Sessions
from lattice.access.output import OutputAccess
from lattice.base.errors import NotFound, RateLimited, UsageError
from lattice.domain.alert import Phase, Progress
from lattice.domain.allocation import Allocation, Attempt, ExitCode, Reason, State
from lattice.domain.measured import Shown
from lattice.domain.node_snapshot import (
    NodeAlert,
    NodeLeftOut,
    NodeMeasured,
    NodeOver,
    NodeStale,
    NodeUnreachable,
)
from lattice.domain.slices import AllocationSlice, SliceGuest, SliceState
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.watch.model import (
    WatchAlert,
    WatchEnd,
    WatchMeasured,
    WatchMode,
    WatchNote,
    WatchNoteKind,
    WatchProgress,
    WatchQuery,
    WatchRecord,
    WatchState,
)
from lattice.features.watch.service.job_events import QUIET_S
from lattice.features.watch.service.ledger import LOST_AFTER_S
from lattice.features.watch.service.watch import StreamedRecord, WatchSources
from lattice.features.watch.service.watches import WatchService
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_looks import BEGUN, InMemoryNodeLooks, alert, card, sight, snapshot
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")
CAROL = Actor(sub="sub-carol", user="carol")
TICK_S = 0.005


class CountedSlot:
    def __init__(self, limits: CountedLimits, session: str) -> None:
        self._limits = limits
        self._session = session
        self.gone = asyncio.Event()

    async def wait_gone(self) -> None:
        await self.gone.wait()

    async def client_lost(self) -> None:
        raise AssertionError("a stream has no client to wait for")

    async def client_back(self) -> None:
        raise AssertionError("a stream has no client to wait for")

    async def release(self) -> None:
        if self._limits.open_ones.get(self._session) is self:
            del self._limits.open_ones[self._session]


class CountedLimits:
    """So many places; who names a session that has one takes it along."""

    def __init__(self, most: int = 5) -> None:
        self.most = most
        self.open_ones: dict[str, CountedSlot] = {}

    async def open(self, sub: str, kind: Sessions, session: str) -> CountedSlot:
        assert (sub, kind) == ("sub-alice", Sessions.STREAM_METRICS)
        if session in self.open_ones:
            self.open_ones[session].gone.set()
        elif len(self.open_ones) >= self.most:
            raise RateLimited("maximum concurrent sessions reached")
        slot = self.open_ones[session] = CountedSlot(self, session)
        return slot

    async def ask(self, sub: str, kind: Any) -> None:  # noqa: ARG002
        raise AssertionError("a stream is no question")


class Site:
    def __init__(self, **job: Any) -> None:
        self.clock = ManualClock()
        self.clock.advance(BEGUN + 90 - self.clock.now().timestamp())
        began = self.clock.now().replace(microsecond=0) - timedelta(seconds=90)
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        facts: dict[str, Any] = {"submitted": began, "nodes": "n1"}
        self.job: Allocation = allocation(1, "alice", "theory", **facts | job)
        self.scheduler.allocations = [self.job]
        self.looks = InMemoryNodeLooks()
        self.mode = ModeInForce(allocation="1", mode=Mode.PROD, interval_s=30.0)
        self.limits = CountedLimits()
        self.slices: tuple[AllocationSlice, ...] = ()
        self.state = InMemoryStateStore(self.clock)
        self.sharing = sharing_parts(self.state)

    def watching(self, *, limits: CountedLimits | None = None) -> WatchService:
        finder = AllocationFinder(self.scheduler, self.clock, self.sharing.shares)
        return WatchService(
            WatchSources(
                self.scheduler,
                self.looks,
                self.clock,
                lambda _: self.mode,
                TICK_S,
                lambda _: self.slices,
            ),
            OutputAccess(finder, self.sharing.notes, self.clock),
            limits or self.limits,
        )

    def change(self, **facts: Any) -> None:
        self.job = replace(self.job, **facts)
        self.scheduler.allocations = [self.job]

    def end(self, state: State = State.COMPLETED) -> None:
        self.change(state=state, ended=self.clock.now(), exit_code=ExitCode(0))


class Reader:
    """Takes records until one is of the kind that is waited for."""

    def __init__(self, told: AsyncIterator[StreamedRecord]) -> None:
        self._told = told
        self.records: list[WatchRecord] = []
        self.cursor = ""

    async def until(self, kind: type[Any], /, **facts: Any) -> Any:
        async with asyncio.timeout(60):
            async for record, cursor in self._told:
                self.records.append(record)
                self.cursor = cursor or self.cursor
                if isinstance(record, kind) and all(
                    getattr(record, name) == value for name, value in facts.items()
                ):
                    return record
        raise AssertionError(f"it ended without {kind.__name__} {facts}: {self.records}")

    async def rest(self) -> list[WatchRecord]:
        async with asyncio.timeout(60):
            return [record async for record, _ in self._told]

    async def close(self) -> None:
        await self._told.aclose()  # type: ignore[attr-defined]

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.records if isinstance(each, kind)]


async def reader(site: Site, query: WatchQuery | None = None, actor: Actor = ALICE) -> Reader:
    return Reader(await site.watching().stream(actor, "1", query or WatchQuery()))


def measured(node: str, at: float, used: float = 50, **more: Any) -> NodeMeasured:
    before = snapshot(at - 30, *card(at - 30, used=used))
    return NodeMeasured(sight(node, snapshot(at, *card(at, used=used)), before, **more))


async def settle() -> None:
    """Let whoever listens hear."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.spec("WATCH-1")
async def test_a_job_that_waits_is_waited_for_and_followed_to_its_end() -> None:
    site = Site(
        state=State.PENDING, started=None, nodes="", reason=Reason("Priority", "others are before")
    )
    site.looks.tell(measured("n1", 60, 97))
    watched = await reader(site)
    waits = await watched.until(WatchState)
    assert (waits.state, waits.words) == (State.PENDING, "others are before")
    assert site.looks.followed == []
    site.change(state=State.RUNNING, started=site.clock.now(), nodes="n1", reason=None)
    assert (await watched.until(WatchState)).nodes == "n1"
    told = await watched.until(WatchMeasured)
    assert told.summary[0].value == pytest.approx(97)
    site.end()
    *_, last = await watched.rest()
    assert isinstance(last, WatchEnd)
    assert (last.state, str(last.exit_code)) == (State.COMPLETED, "0:0")
    assert site.looks.followers == 0
    assert site.limits.open_ones == {}


@pytest.mark.spec("SRC-3", "WATCH-1")
async def test_a_slice_is_named_once_and_again_when_its_state_changes() -> None:
    site = Site()
    guest = SliceGuest(name="blue", gpus=(0,), state=SliceState.HEALTHY)
    site.slices = (AllocationSlice(node="n1", guest=guest),)
    watched = await reader(site)
    first = await watched.until(WatchNote, kind=WatchNoteKind.SLICE)
    assert first.words == "n1 is measured inside its slice blue: 1 GPU, healthy"
    silent = replace(guest, state=SliceState.UNAVAILABLE, reason="the guest can't be reached")
    site.slices = (AllocationSlice(node="n1", guest=silent),)
    second = await watched.until(WatchNote, kind=WatchNoteKind.SLICE)
    assert second.words.endswith("blue: 1 GPU, unavailable; the guest can't be reached")
    site.end()
    assert not [each for each in await watched.rest() if isinstance(each, WatchNote)]


@pytest.mark.spec("WATCH-1")
async def test_a_job_that_is_over_says_so_and_nothing_else() -> None:
    site = Site(state=State.FAILED)
    site.end(State.FAILED)
    watched = await reader(site)
    assert [type(each) for each in await watched.rest()] == [WatchNote, WatchEnd]


@pytest.mark.spec("WATCH-1")
async def test_a_job_that_slurm_has_forgotten_is_asked_of_accounting() -> None:
    site = Site()
    watched = await reader(site)
    await watched.until(WatchState)
    site.end(State.TIMEOUT)
    site.scheduler.allocations, site.scheduler.remembered = [], [site.job]
    assert (await watched.until(WatchEnd)).state is State.TIMEOUT


@pytest.mark.spec("WATCH-2", "WATCH-1")
async def test_an_alert_is_told_at_once_and_once() -> None:
    site = Site()
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.looks.tell(NodeAlert("n1", alert()), measured("n1", 90, firing=(alert(),)))
    fired = await watched.until(WatchAlert)
    assert (fired.node, fired.rule, fired.value, fired.bound) == ("n1", "gpu_idle", 3, 10)
    site.looks.tell(NodeAlert("n1", alert(phase=Phase.CLEARED, time=BEGUN + 240)))
    cleared = await watched.until(WatchAlert)
    assert (cleared.phase, cleared.lasted_s) == (Phase.CLEARED, 240)
    await watched.close()


@pytest.mark.spec("WATCH-2", "WATCH-1")
async def test_alerts_of_many_nodes_within_a_moment_come_together_and_before_the_end() -> None:
    site = Site(nodes="n[1-40]")
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    for number in range(1, 38):
        site.looks.tell(NodeAlert(f"n{number}", alert()))
        if number % 10 == 0:
            await asyncio.sleep(TICK_S)
    await watched.until(WatchAlert, follows=False)
    assert [each.follows for each in watched.of(WatchAlert)] == [True] * 36 + [False]
    site.looks.tell(NodeAlert("n38", alert()))
    await settle()
    site.end()
    *_, last_alert, end = await watched.rest()
    assert isinstance(last_alert, WatchAlert)
    assert isinstance(end, WatchEnd)


@pytest.mark.spec("WATCH-1")
async def test_a_cursor_does_not_know_of_what_was_not_told_yet() -> None:
    site = Site(nodes="n[1-2]")
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.clock.advance(5)
    site.looks.tell(NodeAlert("n1", alert()), measured("n1", 60), measured("n2", 60))
    await watched.until(WatchMeasured)
    assert watched.of(WatchAlert) == []
    await watched.close()
    again = await reader(site, WatchQuery(cursor=watched.cursor))
    site.looks.tell(measured("n1", 90, firing=(alert(),)))
    assert (await again.until(WatchAlert)).node == "n1"
    await again.close()


@pytest.mark.spec("WATCH-1")
async def test_alerts_only() -> None:
    site = Site()
    watched = await reader(site, WatchQuery(alerts_only=True))
    await watched.until(WatchState)
    await settle()
    site.looks.tell(measured("n1", 60), measured("n1", 90, firing=(alert(),)))
    await watched.until(WatchAlert)
    site.end()
    await watched.until(WatchEnd)
    assert {type(each) for each in watched.records} == {WatchNote, WatchState, WatchAlert, WatchEnd}


@pytest.mark.spec("WATCH-1")
async def test_only_the_chosen_metrics() -> None:
    site = Site()
    site.looks.tell(measured("n1", 60))
    watched = await reader(site, WatchQuery(metrics=(Shown.GPU_POWER_DRAW,)))
    told = await watched.until(WatchMeasured)
    assert [each.metric for each in told.summary] == [Shown.GPU_POWER_DRAW]
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_what_many_nodes_measured_is_one_message() -> None:
    site = Site(nodes="n[1-50]")
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    for number in range(1, 51):
        site.looks.tell(measured(f"n{number}", 60, number))
        if number % 10 == 0:
            await settle()
    told = await watched.until(WatchMeasured)
    assert (len(told.nodes), told.measured, told.node_count) == (50, 50, 50)
    assert told.summary[0].value == pytest.approx(25.5)
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_measurements_that_were_dropped_are_counted_for_the_reader() -> None:
    site = Site()
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.looks.tell(NodeLeftOut("n1", 3), NodeLeftOut("n2", 4), measured("n1", 60))
    note = await watched.until(WatchNote, kind=WatchNoteKind.LEFT_OUT)
    assert note.words == "7 older measurements were left out: this server was too slow for them."
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_a_node_that_stops_answering_is_stale_then_lost() -> None:
    site = Site(nodes="n[1-2]")
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.looks.tell(measured("n2", 60, firing=(alert(),)))
    await watched.until(WatchAlert, phase=Phase.FIRING)
    now = site.clock.now().timestamp()
    site.looks.tell(NodeStale(NodeUnreachable("n2", "its link is lost", now)))
    unknown = await watched.until(WatchAlert)
    assert (unknown.phase, unknown.value) == (Phase.UNKNOWN, None)
    site.clock.advance(LOST_AFTER_S)
    lost = await watched.until(WatchAlert)
    assert lost.rule == "node_lost"
    site.looks.tell(measured("n1", 90))
    told = await watched.until(WatchMeasured)
    assert [each.node for each in told.nodes] == ["n1"], "its last values are not current"
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_a_requeue_is_another_attempt_with_nodes_of_its_own() -> None:
    site = Site()
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.looks.tell(measured("n1", 60, firing=(alert(),)))
    await watched.until(WatchAlert)
    site.looks.sights.clear()
    site.change(state=State.PENDING, started=None, nodes="", attempt=2)
    assert (await watched.until(WatchState)).attempt == 2
    again = site.clock.now() + timedelta(minutes=5)
    site.clock.advance(301)
    first = Attempt(
        number=1, state=State.REQUEUED, submitted=site.job.submitted, ended=again, nodes="n1"
    )
    second = Attempt(
        number=2, state=State.RUNNING, submitted=site.job.submitted, started=again, nodes="n7"
    )
    site.change(state=State.RUNNING, started=again, nodes="n7", attempts=(first, second))
    assert (await watched.until(WatchState)).nodes == "n7"
    await settle()
    assert [each.attempt.nodes for each in site.looks.followed] == ["n1", "n7"]
    assert site.looks.followers == 1
    site.looks.tell(measured("n7", 400, firing=(alert(since=BEGUN + 310),)))
    assert (await watched.until(WatchAlert)).node == "n7"
    await watched.close()


@pytest.mark.spec("WATCH-1", "ALLOC-7")
async def test_while_slurm_is_silent_nothing_has_ended() -> None:
    site = Site()
    watched = await reader(site)
    await watched.until(WatchState)
    site.scheduler.down = True
    site.clock.advance(60)
    assert (await watched.until(WatchNote)).kind is WatchNoteKind.SLURM_AWAY
    site.looks.tell(measured("n1", 150, firing=(alert(),)))
    await watched.until(WatchAlert)
    site.scheduler.down = False
    site.end()
    assert (await watched.until(WatchNote)).kind is WatchNoteKind.SLURM_BACK
    await watched.until(WatchEnd)


@pytest.mark.spec("WATCH-3")
async def test_a_switch_of_the_mode_is_told() -> None:
    site = Site()
    watched = await reader(site)
    assert (await watched.until(WatchMode)).interval_s == 30
    until = site.clock.now().timestamp() + 1800
    site.mode = replace(site.mode, mode=Mode.DEBUG, interval_s=1.0, until=until, set_by="alice")
    told = await watched.until(WatchMode)
    assert (told.mode, told.interval_s, told.set_by) == (Mode.DEBUG, 1, "alice")
    assert told.until.timestamp() == until
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_a_job_that_does_not_get_on() -> None:
    site = Site()
    now = site.clock.now().timestamp()
    site.looks.tell(measured("n1", 60, progress=Progress(output=now - 10, processor=now - 5)))
    watched = await reader(site)
    told = await watched.until(WatchProgress)
    assert told.moving
    assert told.output.timestamp() == pytest.approx(now - 10)
    site.clock.advance(QUIET_S)
    quiet = await watched.until(WatchProgress)
    assert not quiet.moving
    assert quiet.last.timestamp() == pytest.approx(now - 5)
    await watched.close()


@pytest.mark.spec("WATCH-1")
async def test_a_node_on_which_the_job_is_done() -> None:
    site = Site(nodes="n[1-2]")
    watched = await reader(site)
    await watched.until(WatchState)
    await settle()
    site.looks.tell(measured("n1", 60, firing=(alert(),)), NodeOver("n1"))
    await watched.until(WatchAlert, phase=Phase.CLEARED)
    await watched.close()


class TestOverSeveralConnections:
    @pytest.mark.spec("WATCH-1")
    async def test_no_alert_is_told_twice(self) -> None:
        site = Site()
        watched = await reader(site)
        await watched.until(WatchState)
        await settle()
        site.clock.advance(2)
        site.looks.tell(measured("n1", 60, firing=(alert(),)))
        await watched.until(WatchAlert)
        site.clock.advance(2)
        site.looks.tell(measured("n1", 90, firing=(alert(),)))
        await watched.until(WatchMeasured)
        await watched.close()
        again = await reader(site, WatchQuery(cursor=watched.cursor))
        await again.until(WatchMeasured)
        assert again.of(WatchAlert) == []
        assert again.of(WatchState) == [], "nor the state"
        site.looks.tell(measured("n1", 120))
        assert (await again.until(WatchAlert)).phase is Phase.CLEARED
        await again.close()

    @pytest.mark.spec("LIMIT-1", "LIMIT-2")
    async def test_its_place_is_taken_along(self) -> None:
        site = Site()
        site.limits.most = 1
        watched = await reader(site)
        await watched.until(WatchState)
        with pytest.raises(RateLimited):
            await reader(site)
        again = await reader(site, WatchQuery(cursor=watched.cursor))
        await again.until(WatchNote)
        with pytest.raises(UsageError, match="another connection"):
            await watched.rest()
        assert len(site.limits.open_ones) == 1
        await again.close()
        assert site.limits.open_ones == {}

    async def test_a_cursor_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="cursor"):
            await reader(Site(), WatchQuery(cursor="nothing"))


class TestOthers:
    @pytest.mark.spec("AUTH-7", "AUTH-12")
    async def test_see_nothing_and_nobody_is_asked(self) -> None:
        site = Site()
        with pytest.raises(NotFound):
            await reader(site, actor=BOB)
        assert site.looks.followed == []

    @pytest.mark.spec("AUTH-7")
    async def test_who_governs_the_account_is_written_down(self) -> None:
        site = Site()
        stream = await site.watching(limits=_Any()).stream(CAROL, "1", WatchQuery())
        async with aclosing(stream) as told:  # type: ignore[type-var]
            await anext(told)
            (noted,) = await site.sharing.notes.of([site.job])
            assert (noted.reader, noted.follows) == ("carol", 1)


class _Any(CountedLimits):
    async def open(self, sub: str, kind: Sessions, session: str) -> CountedSlot:  # noqa: ARG002
        return await super().open("sub-alice", kind, session)
