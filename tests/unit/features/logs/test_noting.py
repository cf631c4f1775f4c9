"""When a job's files are noted: while an answer is awaited, for new processes, not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from lattice.features.logs.node import file_journal as module
from lattice.features.logs.node.file_journal import Noting
from lattice.features.logs.node.writers import LogWriter
from tests.eventually import eventually_async
from tests.fakes.in_memory_outputs import InMemoryOutputs

LOOKS = 3


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = InMemoryOutputs()
        self.pids: list[int] = []
        self.looks: list[bool] = []
        self.noting = Noting(self.port, 7, self._writers, looks_s=(0.0,) * LOOKS)

    async def _writers(self, anew: bool) -> Sequence[LogWriter]:
        self.looks.append(anew)
        return [LogWriter(pid, "0") for pid in self.pids]

    def start(self, pid: int) -> None:
        file = self.folder / f"{pid}.out"
        file.touch()
        self.port.hold("7", pid, 1, file)
        self.pids.append(pid)

    async def until(self, done: Callable[[], bool]) -> None:
        await eventually_async(done)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(module, "_SHORTEST_PAUSE_S", 0.0)
    made = Bench(tmp_path)
    running = asyncio.create_task(made.noting.run())
    yield made
    running.cancel()


async def settled() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_nothing_is_noted_while_answers_come_at_once(bench: Bench) -> None:
    bench.start(11)
    bench.noting.changed()
    await settled()
    assert (bench.port.noted, bench.looks, bench.noting.unopened) == ([], [], False)


@pytest.mark.spec("LOG-3")
async def test_while_one_is_awaited_each_process_is_noted_a_few_times(bench: Bench) -> None:
    bench.start(11)
    bench.noting.awaited()
    await bench.until(lambda: len(bench.port.noted) == LOOKS)
    for _ in range(10):
        bench.noting.awaited()
        await settled()
    assert bench.port.noted == [(11,)] * LOOKS
    assert bench.noting.unopened
    # One that comes later is noted as often, without the one before.
    bench.start(12)
    bench.noting.changed()
    await bench.until(lambda: len(bench.port.noted) == 2 * LOOKS)
    assert bench.port.noted[LOOKS:] == [(12,)] * LOOKS


async def test_what_was_opened_since_needs_no_note(bench: Bench) -> None:
    bench.start(11)
    bench.start(12)
    bench.noting.awaited()
    await bench.until(lambda: bench.noting.unopened)
    bench.noting.answered([11])
    assert bench.noting.unopened  # of 12 nobody has seen a file
    count = len(bench.looks)
    bench.start(13)
    bench.noting.changed()
    await settled()
    assert len(bench.looks) <= count + 1
    assert all(13 not in each for each in bench.port.noted)
    bench.noting.answered([12])
    assert not bench.noting.unopened


async def test_a_process_without_files_leaves_nothing_to_open(bench: Bench) -> None:
    bench.pids.append(11)
    bench.noting.awaited()
    await bench.until(lambda: len(bench.port.noted) == LOOKS)
    assert not bench.noting.unopened


@pytest.mark.spec("LOG-3")
async def test_a_helper_that_is_away_is_asked_again(bench: Bench) -> None:
    bench.port.away = True
    bench.start(11)
    bench.noting.awaited()
    await bench.until(lambda: len(bench.looks) > LOOKS)
    assert bench.port.noted == []
    bench.port.away = False
    bench.noting.awaited()
    await bench.until(lambda: bench.noting.unopened)


async def test_many_processes_are_asked_for_in_parts(bench: Bench) -> None:
    for pid in range(100, 250):
        bench.start(pid)
    bench.noting.awaited()
    await bench.until(lambda: len(bench.port.noted) >= 3)
    assert [len(each) for each in bench.port.noted[:3]] == [64, 64, 22]
