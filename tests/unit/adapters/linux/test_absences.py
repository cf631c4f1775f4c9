"""An agent that could not watch knows from when to when."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.linux import nodejobs as listener
from lattice.adapters.linux.inotify import FileNotice
from lattice.adapters.linux.nodejobs import Absences, NodeJobs
from lattice.domain.nodejobs import JobAppeared, JobEvent, WatchPause
from tests.eventually import eventually_async
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.node_tree import NodeTree

T = RECORDED.timestamp()
_JOB = "freezer/slurm_n1/uid_3001/job_5"


async def noted(absences: Absences) -> WatchPause | None:
    """What waits to be read; None if nothing does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            return await absences.next()
    return None


@pytest.mark.spec("LOG-3")
async def test_a_pulse_that_is_late_is_an_absence() -> None:
    clock = ManualClock()
    absences = Absences(clock)
    clock.advance(1)
    absences.beat()
    assert await noted(absences) is None
    clock.advance(16)
    absences.beat()
    assert await noted(absences) == WatchPause(T + 1, T + 17)
    assert await noted(absences) is None


@pytest.mark.spec("LOG-3")
async def test_a_stopped_process_notices_it_by_its_own_pulse() -> None:
    clock = ManualClock()
    absences = Absences(clock, pulse_s=0.001)
    running = asyncio.create_task(absences.run())
    await asyncio.sleep(0.01)
    clock.advance(16)
    assert await absences.next() == WatchPause(T, T + 16)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.spec("LOG-3")
@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 50)), min_size=1, max_size=8))
async def test_absences_that_wait_are_given_out_as_one_that_covers_them_all(
    pauses: list[tuple[float, float]],
) -> None:
    clock = ManualClock()
    absences = Absences(clock)
    every = []
    for pause_s, lasted_s in pauses:
        clock.advance(pause_s + lasted_s)
        absences.note(lasted_s)
        until = clock.now().timestamp()
        every.append((until - lasted_s, until))
    found = await absences.next()
    assert found.since == min(since for since, _ in every)
    assert found.until == max(until for _, until in every)
    assert await noted(absences) is None


class Watched:
    """A watcher that runs on a small tree."""

    def __init__(self, folder: Path, *, notices: bool = True) -> None:
        self.clock = ManualClock()
        self.tree = NodeTree(folder)
        self.tree.group("freezer/slurm_n1")
        self.node = NodeJobs(
            self.tree.roots, self.clock, birth=self.tree.birth, notices=notices, rescan_s=1e9
        )

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.node.run())
        await self.node.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


@pytest.mark.spec("LOG-3")
async def test_an_agent_stopped_for_16_s_says_so_once_it_goes_on(tmp_path: Path) -> None:
    async with Watched(tmp_path) as watched:
        watched.clock.advance(16)
        absence = await watched.node.missed()
        assert absence == WatchPause(T, T + 16)


@pytest.mark.spec("LOG-3")
async def test_the_absence_is_known_before_jobs_are_told_that_came_and_went_in_it(
    tmp_path: Path,
) -> None:
    async with Watched(tmp_path) as watched:
        watched.clock.advance(16)
        await watched.node.refresh()
        assert await noted(watched.node._absences) == WatchPause(T, T + 16)


@pytest.mark.spec("LOG-3")
async def test_a_reading_that_hung_is_an_absence(tmp_path: Path) -> None:
    """As of a process whose files the kernel does not show."""
    async with Watched(tmp_path) as watched:
        turn = watched.node._scanner.turn

        def hanging(everything: bool) -> tuple[JobEvent, ...]:
            watched.clock.advance(30)
            return turn(everything)

        watched.node._scanner.turn = hanging  # type: ignore[method-assign]
        await watched.node.refresh()
        assert await watched.node.missed() == WatchPause(T, T + 30)


@pytest.mark.spec("LOG-3")
async def test_notices_that_the_kernel_dropped_are_an_absence(tmp_path: Path) -> None:
    async with Watched(tmp_path) as watched:
        await watched.node.refresh()
        watched.clock.advance(1)
        inotify = watched.node._scanner.inotify
        assert inotify is not None
        inotify.read = lambda: [FileNotice(lost=True)]  # type: ignore[method-assign]
        await watched.node.refresh()
        assert await watched.node.missed() == WatchPause(T, T + 1)


@pytest.mark.spec("LOG-3")
async def test_without_notices_jobs_between_two_readings_are_missed(tmp_path: Path) -> None:
    async with Watched(tmp_path, notices=False) as watched:
        absence = await watched.node.missed()
        assert absence.until - absence.since == pytest.approx(3.0)


@pytest.mark.spec("LOG-3")
async def test_events_that_a_reader_was_too_slow_for_are_an_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener.JobListener.__init__, "__defaults__", (0,))
    async with Watched(tmp_path) as watched:
        changes = watched.node.changes()
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        watched.clock.advance(1)
        watched.tree.group(f"{_JOB}/step_0")
        event = await waiting
        assert isinstance(event, JobAppeared)
        absence = await watched.node.missed()
        assert (absence.since, absence.until) == (T, T + 1)
        await changes.aclose()  # type: ignore[attr-defined]


async def test_nothing_is_noted_while_all_is_well(tmp_path: Path) -> None:
    async with Watched(tmp_path) as watched:
        for _ in range(5):
            watched.clock.advance(0.9)
            await watched.node.refresh()
        watched.tree.group(f"{_JOB}/step_0")
        await eventually_async(lambda: bool(watched.node.jobs))
        assert await noted(watched.node._absences) is None
