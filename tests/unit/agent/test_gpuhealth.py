"""The watch over a node's GPUs: a driver that hangs or raises is told, and stops nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from lattice.agent.gpuhealth import SILENT, GpuHealthWatch
from lattice.domain.node import HealthState, NodeHealth
from lattice.probes.gpuhealth import CardCondition, ExpectedGpus, GpuHealthJudge, GpuReading
from tests.fakes.manual_clock import RECORDED, ManualClock

SOUND = GpuReading(time=RECORDED.timestamp(), cards=(CardCondition(uuid="GPU-a"),))


class Looks:
    """The watch, run until it has slept so many times."""

    def __init__(self, look: Callable[[], GpuReading], patience_s: float = 10.0) -> None:
        self.slept = asyncio.Semaphore(0)
        self.watch = GpuHealthWatch(
            look,
            GpuHealthJudge(ExpectedGpus()),
            ManualClock(),
            patience_s=patience_s,
            sleep=self._sleep,
        )
        self.go_on = asyncio.Semaphore(0)

    async def _sleep(self, _: float) -> None:
        self.slept.release()
        await self.go_on.acquire()

    async def health_after(self, looks: int) -> list[NodeHealth]:
        running = asyncio.create_task(self.watch.run())
        found = []
        try:
            for _ in range(looks):
                await asyncio.wait_for(self.slept.acquire(), 60)
                found.append(self.watch.current())
                self.go_on.release()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return found


@pytest.mark.spec("OPS-10")
async def test_before_the_first_look_nothing_is_known() -> None:
    assert Looks(lambda: SOUND).watch.current() == NodeHealth(HealthState.UNKNOWN)
    assert await Looks(lambda: SOUND).health_after(1) == [NodeHealth(HealthState.HEALTHY)]


@pytest.mark.spec("OPS-10")
async def test_a_driver_that_hangs_is_a_failure_and_is_not_asked_again_meanwhile() -> None:
    freed, asked = threading.Event(), []

    def hang() -> GpuReading:
        asked.append(1)
        freed.wait(30)
        return SOUND

    try:
        looks = Looks(hang, patience_s=0.01)
        hung = NodeHealth(HealthState.FAILURE, (SILENT,))
        assert await looks.health_after(2) == [hung, hung]
        assert len(asked) == 1
    finally:
        freed.set()


@pytest.mark.spec("OPS-10")
async def test_a_binding_that_raises_is_told_in_its_words() -> None:
    def fail() -> GpuReading:
        raise RuntimeError("no such symbol")

    (found,) = await Looks(fail).health_after(1)
    assert found == NodeHealth(HealthState.FAILURE, ("RuntimeError: no such symbol",))
