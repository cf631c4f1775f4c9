"""How many connections to nodes are opened at a time, and how long a silent node delays others."""

from __future__ import annotations

import asyncio

import pytest

from lattice.base.errors import Unavailable
from lattice.observe import opening_turns
from lattice.observe.opening_turns import OpeningTurns
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock


async def _open(turns: OpeningTurns, opened: asyncio.Event) -> None:
    async with turns.turn():
        await opened.wait()


@pytest.mark.spec("LOG-7", "WATCH-1")
async def test_so_many_are_opened_at_a_time_and_the_next_when_one_is_open() -> None:
    turns, opened = OpeningTurns(2), [asyncio.Event() for _ in range(3)]
    entered: list[int] = []

    async def one(number: int) -> None:
        async with turns.turn():
            entered.append(number)
            await opened[number].wait()

    tasks = [asyncio.create_task(one(number)) for number in range(3)]
    await eventually_async(lambda: entered == [0, 1])
    opened[1].set()
    await eventually_async(lambda: entered == [0, 1, 2])
    for each in opened:
        each.set()
    await asyncio.gather(*tasks)


@pytest.mark.spec("LOG-7", "WATCH-1")
async def test_a_silent_node_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_turns, "_LEAST_S", 0.01)
    turns, never = OpeningTurns(1), asyncio.Event()
    silent = asyncio.create_task(_open(turns, never))
    await asyncio.sleep(0)
    async with asyncio.timeout(30), turns.turn():
        assert not silent.done()
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)
    async with asyncio.timeout(30), turns.turn():
        pass


async def test_fewer_are_opened_at_a_time_while_openings_are_slow() -> None:
    """So a machine without processor time finishes some, and none is given up half-way."""
    clock = ManualClock()
    turns = OpeningTurns(16, clock.monotonic)

    async def one(took_s: float) -> None:
        async with turns.turn():
            clock.advance(took_s)

    for _ in range(100):
        await one(0.1)
    assert turns.at_a_time == 64
    for _ in range(100):
        await one(3.0)
    assert turns.at_a_time == 4
    for _ in range(200):
        await one(0.1)
    assert turns.at_a_time == 64


@pytest.mark.spec("LOG-7", "WATCH-1")
async def test_a_slow_opening_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    turns = OpeningTurns(1, clock.monotonic)
    monkeypatch.setattr(opening_turns, "_FEWEST", 1)
    monkeypatch.setattr(opening_turns, "_LONGEST_S", 0.05)
    for took_s, rests in ((0.1, False), (3.0, True)):
        async with turns.turn():
            clock.advance(took_s)
        assert (turns._held == 1) is rests
        await eventually_async(lambda: turns._held == 0)


async def test_a_reader_who_leaves_while_it_waits_keeps_no_turn() -> None:
    turns, opened = OpeningTurns(1), asyncio.Event()
    first = asyncio.create_task(_open(turns, opened))
    waiting = [asyncio.create_task(_open(turns, opened)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    opened.set()
    await first
    waiting[1].cancel()  # it may have the turn by now
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(30), turns.turn():
        pass
    assert turns._held == 0


async def test_where_openings_are_slow_a_turn_lasts_longer_until_they_are_quick_again() -> None:
    clock = ManualClock()
    turns = OpeningTurns(1, clock.monotonic)
    assert turns.patience_s == 1
    async with turns.turn():
        clock.advance(2)
    assert turns.patience_s == 8

    async def silent() -> None:
        async with turns.turn():
            clock.advance(5)
            raise Unavailable("It does not answer.")

    with pytest.raises(Unavailable):
        await silent()
    assert turns.patience_s == 8, "how long a silent node took is no measure"
    async with turns.turn():
        clock.advance(60)
    assert turns.patience_s == 10
    for _ in range(100):
        async with turns.turn():
            clock.advance(0.02)
    assert turns.patience_s == 1
