"""Heavy work in few threads, which let others go first."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from lattice.base.heavy import few, give_way, in_few_threads


async def test_what_it_returns_and_raises_comes_back() -> None:
    assert await in_few_threads(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_few_threads(divmod, 7, 0)


async def test_no_more_run_at_once_than_there_are_threads() -> None:
    running, most, lock = 0, 0, threading.Lock()
    go_on = threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(10)
        with lock:
            running -= 1

    tasks = [asyncio.create_task(in_few_threads(work)) for _ in range(few() + 3)]
    while most < few():
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*tasks)
    assert most == few()


async def test_these_threads_give_way_and_the_event_loop_does_not() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = nice()
    assert await in_few_threads(nice) > before or before == 19
    assert nice() == before


def test_a_thread_that_gave_way_already_stays_there() -> None:
    found: list[int] = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        give_way()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [19]
