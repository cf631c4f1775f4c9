"""A supervisor for tests: its pauses take no time, and it can have a loop fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from lattice.base.clock import Clock, SystemClock
from lattice.base.supervisor import Loop, Supervisor
from tests.eventually import eventually_async


class Defect(Exception):
    """What a killed loop raises."""


class SupervisedLoops(Supervisor):
    """The real supervisor around real loops. `kill` has one of them raise `Defect`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock(), self._note_end, sleep=self._no_pause)
        self.ended = False
        self.begun: dict[str, int] = {}
        """How often each loop has begun to run."""
        self._killed: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def running(self, *loops: Loop) -> AsyncIterator[None]:
        killable = (replace(each, run=_Killable(self, each)) for each in loops)
        async with super().running(*killable):
            yield

    async def kill(self, name: str) -> None:
        """End what the loop is doing, and have it raise; returns when that was noticed."""
        before = self.failures[name]
        await eventually_async(lambda: name in self._killed)
        self._killed[name].set()
        await eventually_async(lambda: self.failures[name] > before)

    async def run_until_killed(self, loop: Loop) -> None:
        killed = self._killed[loop.name] = asyncio.Event()
        self.begun[loop.name] = self.begun.get(loop.name, 0) + 1
        running = asyncio.create_task(loop.run(), name=f"{loop.name} itself")
        waiting = asyncio.create_task(killed.wait())
        try:
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                return
        finally:
            for task in (running, waiting):
                task.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)
            del self._killed[loop.name]
        raise Defect(loop.name)

    def _note_end(self) -> None:
        self.ended = True

    @staticmethod
    async def _no_pause(_seconds: float) -> None:
        await asyncio.sleep(0)


class _Killable:
    def __init__(self, supervisor: SupervisedLoops, loop: Loop) -> None:
        self._supervisor = supervisor
        self._loop = loop

    async def __call__(self) -> None:
        await self._supervisor.run_until_killed(self._loop)
