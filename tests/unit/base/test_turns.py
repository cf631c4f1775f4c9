"""Heavy work in threads: fair among callers, one at a time for each, and over when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from lattice.base.turns import Turns
from tests.eventually import eventually_async


def recorded(name: str, steps: int, seen: list[str]) -> Iterator[None]:
    for _ in range(steps):
        seen.append(name)
        yield


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_a_caller_with_one_search_does_not_wait_for_ten_of_another() -> None:
    turns = Turns(1, quantum_s=0.0)
    seen: list[str] = []
    crowd = [turns.run("alice", recorded("alice", 20, seen)) for _ in range(10)]
    await asyncio.gather(*crowd, turns.run("bob", recorded("bob", 5, seen)))
    last_of_bob = len(seen) - 1 - seen[::-1].index("bob")
    assert seen.count("alice") == 200
    assert last_of_bob <= 2 * 5, "every second turn was his"
    turns.close()


@pytest.mark.spec("LIMIT-4")
async def test_one_caller_runs_in_one_thread_at_a_time() -> None:
    turns = Turns(4)
    begun: list[str] = []
    go_on = threading.Event()

    def held(name: str) -> Iterator[None]:
        begun.append(name)
        go_on.wait()
        yield

    crowd = [asyncio.create_task(turns.run("alice", held("alice"))) for _ in range(8)]
    await asyncio.sleep(0)
    other = asyncio.create_task(turns.run("bob", held("bob")))
    await eventually_async(lambda: "bob" in begun)
    assert sorted(begun) == ["alice", "bob"], "though two threads were free"
    go_on.set()
    await asyncio.gather(*crowd, other)
    turns.close()


async def test_what_the_work_raises_is_raised_to_whoever_waits() -> None:
    turns = Turns(1)

    def broken() -> Iterator[None]:
        yield
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        await turns.run("alice", broken())
    await turns.run("alice", iter(()))
    assert (turns.running, turns.waiting) == (0, 0)
    turns.close()


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("heavy-search")
async def test_work_nobody_waits_for_ends_after_its_step() -> None:
    turns = Turns(1, quantum_s=3600.0)
    begun, go_on = threading.Event(), threading.Event()
    steps = 0

    def endless() -> Iterator[None]:
        nonlocal steps
        while True:
            steps += 1
            begun.set()
            go_on.wait()
            yield

    search = asyncio.create_task(turns.run("alice", endless()))
    queued = asyncio.create_task(turns.run("alice", endless()))
    await asyncio.to_thread(begun.wait)
    search.cancel()
    queued.cancel()
    await asyncio.gather(search, queued, return_exceptions=True)
    go_on.set()
    await turns.run("alice", iter(()))
    assert steps == 1, "the step at hand was the last, and what was queued never began"
    assert (turns.running, turns.waiting) == (0, 0)
    turns.close()


async def test_closing_ends_those_who_wait() -> None:
    turns = Turns(1, quantum_s=0.0)
    go_on = threading.Event()

    def held() -> Iterator[None]:
        go_on.wait()
        yield

    running = asyncio.create_task(turns.run("alice", held()))
    waiting = asyncio.create_task(turns.run("bob", held()))
    await asyncio.sleep(0)
    turns.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
