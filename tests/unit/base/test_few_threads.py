"""Heavy work in few threads."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from lattice.base.turns import few, in_few_threads


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


async def test_these_threads_have_the_priority_of_the_event_loop() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await in_few_threads(nice) == nice()
