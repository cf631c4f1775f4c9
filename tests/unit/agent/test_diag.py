"""The agent's sources of facts: a driver that hangs or fails is told, and stops nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from lattice.agent.diag import task_fact
from lattice.base.driver_reads import DriverReads
from lattice.base.errors import Unavailable
from lattice.domain.probed import TaskReport
from lattice.probes.facts.links import NetworkReading

LOOK = NetworkReading(1.0, (), None)


async def test_a_look_is_told_to_all_who_wait_for_it() -> None:
    begun, looks = threading.Event(), []

    def look() -> NetworkReading:
        begun.wait(10)
        looks.append(1)
        return LOOK

    network = DriverReads(look, "network", 10.0, "the driver does not answer")
    waiting = [asyncio.create_task(network(), name=f"look {number}") for number in range(3)]
    await asyncio.sleep(0)
    begun.set()
    assert await asyncio.gather(*waiting) == [LOOK] * 3
    assert looks == [1]
    assert await network() == LOOK
    assert looks == [1, 1]


@pytest.mark.spec("DIAG-2")
async def test_a_driver_that_hangs_is_said_to_and_no_second_thread_waits_for_it() -> None:
    answers, begun = threading.Event(), []

    def look() -> NetworkReading:
        begun.append(1)
        answers.wait(10)
        return LOOK

    network = DriverReads(look, "network", 0.05, "the driver does not answer")
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not answer"):
            await network()
    assert begun == [1]
    answers.set()
    while True:
        try:
            assert await network() == LOOK
        except Unavailable:
            continue
        break


async def test_what_a_look_raises_is_told_once_and_the_next_one_is_new() -> None:
    results: Iterator[NetworkReading | Exception] = iter((OSError(5, "broken"), LOOK))

    def look() -> NetworkReading:
        found = next(results)
        if isinstance(found, Exception):
            raise found
        return found

    network = DriverReads(look, "network", 10.0, "the driver does not answer")
    with pytest.raises(OSError, match="broken"):
        await network()
    assert await network() == LOOK


def test_a_process_began_by_the_servers_clock() -> None:
    look = TaskReport(pid=7, step="0\x1b", rank=2, state="Sx", age_s=60.0, command="a\nb")
    fact = task_fact(look, 1000.0)
    assert (fact.started, fact.rank, fact.state) == (940.0, 2, "S")
    assert fact.step.isprintable()
    assert fact.command.isprintable()
    assert task_fact(TaskReport(pid=7, step="0", rank=None, state="R"), 1000.0).started is None
