"""A run store that hangs: who waits for it, and for how long."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from lattice.domain.training_run import RunPoint, StoredTraining
from lattice.foundation.run_finder import PAUSE_S, TrainingRunFinder
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_runs import InMemoryRunStore
from tests.fakes.manual_clock import ManualClock


class HangingStore(InMemoryRunStore):
    """Never answers a search."""

    async def of_job(self, job_id: int) -> tuple[StoredTraining, ...]:
        self.asked.append(job_id)
        await asyncio.Event().wait()
        raise AssertionError

    async def history(self, run: str, metric: str) -> tuple[RunPoint, ...]:
        raise AssertionError(run, metric)


async def test_a_store_that_hangs_holds_up_one_impatient_caller_only() -> None:
    clock, store = ManualClock(), HangingStore()
    finder = TrainingRunFinder(clock, store)
    job = allocation(42, "alice", "research", submitted=clock.now() - timedelta(hours=1))
    for _ in range(5):
        found = await finder.of(job, 0.01)
        assert found.runs == ()
        assert [each.error for each in found.sources] == ["it did not answer within 0.01 s"]
    assert store.asked == [42]
    # Who waits longer tries.
    await finder.of(job, 0.02)
    assert store.asked == [42, 42]
    clock.advance(PAUSE_S + 1)
    await finder.of(job, 0.01)
    assert store.asked == [42, 42, 42]


async def test_without_a_store_there_is_no_source() -> None:
    clock = ManualClock()
    found = await TrainingRunFinder(clock).of(allocation(42, "alice", "research"), 1.0)
    assert (found.runs, found.sources) == ((), ())
