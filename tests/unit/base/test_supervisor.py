"""Loops that fail are logged, counted, and started again, or the process ends."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from lattice.base.errors import status_of
from lattice.base.logs import configure_logging
from lattice.base.supervisor import (
    FIRST_PAUSE_S,
    HEALTHY_S,
    LONGEST_PAUSE_S,
    Loop,
    LoopFailed,
    LoopReturned,
    OnFailure,
    Supervisor,
)
from tests.eventually import eventually_async
from tests.fakes.manual_clock import ManualClock

RESTART, END = OnFailure.RESTART, OnFailure.END


class Process:
    """A supervisor whose pauses take no time, and whether it asked for the end."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pauses: list[float] = []
        self.ended = 0
        self.supervisor = Supervisor(self.clock, self._end, sleep=self._sleep)

    def _end(self) -> None:
        self.ended += 1

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


class Step:
    """A loop that fails so many times, each after some time of health, and then runs on."""

    def __init__(self, process: Process, *healthy_s: float) -> None:
        self._clock = process.clock
        self._healthy_s = list(healthy_s)
        self.name = ""
        self.runs = 0
        self.began = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        self.runs += 1
        if self._healthy_s:
            self._clock.advance(self._healthy_s.pop(0))
            raise RuntimeError(f"defect {self.runs}")
        task = asyncio.current_task()
        self.name = task.get_name() if task else ""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            # It may have to tidy up: the context waits for that too.
            await asyncio.sleep(0)
            self.ended = True


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(each) for each in log.getvalue().splitlines()]


async def test_every_loop_has_ended_when_the_context_has() -> None:
    process = Process()
    first, second = Step(process), Step(process)
    async with process.supervisor.running(
        Loop("one", first.run, RESTART), Loop("two", second.run, END)
    ):
        await first.began.wait()
        await second.began.wait()
        assert (first.name, second.name) == ("one", "two")
        assert not first.ended
    assert first.ended
    assert second.ended
    assert process.supervisor.failures == {"one": 0, "two": 0}
    process.supervisor.check()


async def test_an_error_inside_comes_out_when_the_loops_have_ended() -> None:
    process = Process()
    step = Step(process)

    async def fail() -> None:
        async with process.supervisor.running(Loop("step", step.run, RESTART)):
            await step.began.wait()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await fail()
    assert step.ended


async def test_a_failure_is_logged_counted_and_the_loop_started_again(log: io.StringIO) -> None:
    process = Process()
    step = Step(process, 0)
    async with process.supervisor.running(Loop("step", step.run, RESTART)):
        await step.began.wait()
    assert step.runs == 2
    assert process.supervisor.failures == {"step": 1}
    assert process.ended == 0
    process.supervisor.check()
    (line,) = lines(log)
    assert line["event"] == "a background loop failed and is started again"
    assert line["level"] == "error"
    assert (line["loop"], line["failures"], line["pause_s"]) == ("step", 1, FIRST_PAUSE_S)
    assert "RuntimeError: defect 1" in line["exception"]
    assert "Traceback" in line["exception"]


async def test_pauses_grow_up_to_a_bound_and_begin_again_after_health() -> None:
    process = Process()
    step = Step(process, *[1.0] * 7, HEALTHY_S, 1.0)
    async with process.supervisor.running(Loop("step", step.run, RESTART)):
        await step.began.wait()
    assert process.pauses == [1, 2, 4, 8, *[LONGEST_PAUSE_S] * 3, FIRST_PAUSE_S, 2]


async def test_a_loop_that_is_needed_ends_the_process(log: io.StringIO) -> None:
    process = Process()
    needed, other = Step(process, 0), Step(process)
    async with process.supervisor.running(
        Loop("needed", needed.run, END), Loop("other", other.run, RESTART)
    ):
        await eventually_async(lambda: process.ended)
        await other.began.wait()
        assert not other.ended
    assert process.supervisor.failures == {"needed": 1, "other": 0}
    with pytest.raises(LoopFailed, match="'needed' failed: RuntimeError: defect 1") as failed:
        process.supervisor.check()
    assert status_of(failed.value).exit == 1
    assert "systemd" in (failed.value.hint or "")
    (line,) = lines(log)
    assert line["event"] == "a background loop failed and the process ends"
    assert line["level"] == "critical"
    assert "RuntimeError: defect 1" in line["exception"]


async def test_a_loop_that_returns_has_failed(log: io.StringIO) -> None:
    process = Process()
    turns = asyncio.Semaphore(2)

    async def returns() -> None:
        await turns.acquire()

    async with process.supervisor.running(Loop("step", returns, RESTART)):
        await eventually_async(lambda: process.supervisor.failures["step"] == 2)
    assert LoopReturned.__name__ in lines(log)[0]["exception"]


async def test_a_finite_loop_may_return(log: io.StringIO) -> None:
    process = Process()
    done = asyncio.Event()

    async def returns() -> None:
        done.set()

    async with process.supervisor.running(Loop("step", returns, END, finite=True)):
        await done.wait()
        await asyncio.sleep(0)
    assert process.supervisor.failures == {"step": 0}
    assert process.ended == 0
    assert lines(log) == []


async def test_a_cancellation_that_is_not_the_owners_is_a_failure() -> None:
    process = Process()
    waits: list[asyncio.Future[None]] = []

    async def awaits() -> None:
        waits.append(asyncio.get_running_loop().create_future())
        await waits[-1]

    async with process.supervisor.running(Loop("step", awaits, RESTART)):
        await eventually_async(lambda: waits)
        waits[0].cancel()
        await eventually_async(lambda: len(waits) == 2)
    assert process.supervisor.failures == {"step": 1}


async def test_a_failed_task_group_does_not_look_like_a_stop() -> None:
    process = Process()
    timeouts = 0

    async def broken() -> None:
        await asyncio.sleep(0)
        raise RuntimeError("defect")

    async def group() -> None:
        nonlocal timeouts
        if timeouts == 0:
            timeouts = 1
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(broken())
                tasks.create_task(asyncio.Event().wait())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        timeouts = 2
        await asyncio.Event().wait()

    async with process.supervisor.running(Loop("step", group, RESTART)):
        await eventually_async(lambda: timeouts == 2)
    assert process.supervisor.failures == {"step": 1}


async def test_a_failure_during_the_stop_is_logged_and_counted(log: io.StringIO) -> None:
    process = Process()
    began = asyncio.Event()

    async def breaks_at_its_end() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("defect at the end")

    async with process.supervisor.running(Loop("step", breaks_at_its_end, END)):
        await began.wait()
    assert process.supervisor.failures == {"step": 1}
    assert process.ended == 0
    (line,) = lines(log)
    assert line["event"] == "a background loop failed as it stopped"
    assert "defect at the end" in line["exception"]


async def test_a_loop_that_waits_to_be_started_again_stops_at_once() -> None:
    clock, asleep = ManualClock(), asyncio.Event()

    async def sleep(_seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    async def broken() -> None:
        raise RuntimeError("defect")

    supervisor = Supervisor(clock, lambda: None, sleep=sleep)
    async with supervisor.running(Loop("step", broken, RESTART)):
        await asleep.wait()
    assert supervisor.failures == {"step": 1}
