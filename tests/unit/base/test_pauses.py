"""The longest pause of an event loop, counted by a clock that the test moves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from lattice.base.pauses import BEAT_S, WINDOW_S, LoopPauses
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pauses(clock: ManualClock) -> LoopPauses:
    return LoopPauses(clock.monotonic)


def run(pauses: LoopPauses, work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work()

    with asyncio.Runner(loop_factory=pauses.new_loop) as runner:
        runner.run(whole())


def test_the_longest_turn_is_known_and_all_are_summed(
    clock: ManualClock, pauses: LoopPauses
) -> None:
    async def work() -> None:
        for blocked_s in (0.25, 2.0, 0.5):
            clock.advance(blocked_s)  # as a call that blocks
            await asyncio.sleep(0)

    run(pauses, work)
    assert pauses.longest_s == 2.0
    assert pauses.busy_s == 2.75
    assert pauses.turns >= 3


def test_what_was_before_the_start_is_left_out(clock: ManualClock, pauses: LoopPauses) -> None:
    async def work() -> None:
        clock.advance(9.0)
        await asyncio.sleep(0)
        clock.advance(8.0)
        pauses.start()
        clock.advance(7.0)
        await asyncio.sleep(0)
        clock.advance(0.5)

    run(pauses, work)
    assert pauses.longest_s == 0.5
    assert pauses.busy_s == 24.5


def test_waiting_for_the_kernel_is_no_pause(clock: ManualClock, pauses: LoopPauses) -> None:
    async def work() -> None:
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        ask = selector._ask

        def slow(timeout: float | None) -> Any:
            clock.advance(30)
            return ask(timeout)

        selector._ask = slow
        await asyncio.sleep(0)

    run(pauses, work)
    assert pauses.turns > 0
    assert pauses.busy_s == 0
    assert pauses.longest_s == 0


def test_it_is_the_longest_of_the_last_minutes(clock: ManualClock, pauses: LoopPauses) -> None:
    now = clock.monotonic()
    pauses.note(now, now + 3)
    clock.advance(WINDOW_S - 1)
    assert pauses.longest_s == 3
    clock.advance(2)
    assert pauses.longest_s == 3, "that of the minute before"
    now = clock.monotonic()
    pauses.note(now, now + 1)
    assert pauses.longest_s == 3
    clock.advance(WINDOW_S)
    assert pauses.longest_s == 1
    clock.advance(WINDOW_S)
    assert pauses.longest_s == 0
    assert pauses.busy_s == 4


def test_two_readers_see_the_same(clock: ManualClock, pauses: LoopPauses) -> None:
    now = clock.monotonic()
    pauses.note(now, now + 3)
    assert [pauses.longest_s, pauses.longest_s] == [3, 3]


def test_after_a_long_sleep_nothing_old_is_left(clock: ManualClock, pauses: LoopPauses) -> None:
    now = clock.monotonic()
    pauses.note(now, now + 3)
    clock.advance(2 * WINDOW_S)
    now = clock.monotonic()
    pauses.note(now, now + 0.5)
    assert pauses.longest_s == 0.5


def test_a_pause_longer_than_a_window_is_seen(clock: ManualClock, pauses: LoopPauses) -> None:
    began = clock.monotonic()
    clock.advance(3 * WINDOW_S)
    pauses.note(began, clock.monotonic())
    assert pauses.longest_s == 3 * WINDOW_S


def test_child_processes_work_on_a_measured_loop(pauses: LoopPauses) -> None:
    found: list[int | None] = []

    async def work() -> None:
        child = await asyncio.create_subprocess_exec("true")
        found.append(await child.wait())

    run(pauses, work)
    assert found == [0]


def test_uvloop_is_measured_by_how_late_a_timer_is(clock: ManualClock, pauses: LoopPauses) -> None:
    async def work() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        await asyncio.sleep(0)
        clock.advance(2.0)  # as a call that blocks
        await eventually_async(lambda: pauses.longest_s > 0)

    with asyncio.Runner(loop_factory=pauses.new_fast_loop) as runner:
        runner.run(work())
    assert 2.0 - BEAT_S <= pauses.longest_s <= 2.0
    assert pauses.turns is None, "they can't be counted there"
    assert pauses.busy_s > 0


def test_without_uvloop_the_loop_is_asyncios(
    pauses: LoopPauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = pauses.new_fast_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)
