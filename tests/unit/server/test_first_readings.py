"""A server that starts listens once it knows Slurm's jobs and the agreed state."""

from __future__ import annotations

import asyncio

from lattice.base.errors import Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.scheduler import SchedulerReading
from lattice.server.serve import first_readings
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.manual_clock import ManualClock

_LONG_S = 3600.0


class _StartingScheduler(InMemoryScheduler):
    """Slurm has not answered yet, and nor has its accounting."""

    has_answered = False
    accounting_error = ""

    def live(self) -> SchedulerReading:
        if not self.has_answered:
            raise Unavailable("Slurm has not answered yet.")
        return super().live()


async def _read(
    scheduler: _StartingScheduler, state: InMemoryStateView, stop: asyncio.Event, within_s: float
) -> None:
    await first_readings(scheduler, lambda: scheduler.accounting_error, state, stop, within_s)


async def test_it_waits_until_slurm_has_answered() -> None:
    clock = ManualClock()
    scheduler = _StartingScheduler(clock)
    state = InMemoryStateView(InMemoryStateStore(clock), "")
    waiting = asyncio.ensure_future(_read(scheduler, state, asyncio.Event(), _LONG_S))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    scheduler.has_answered = True
    await asyncio.sleep(0.1)
    assert not waiting.done(), "whose account a job's is must be known too"
    scheduler.accounts = AccountTree.of([Account("research", "root")])
    await waiting


async def test_accounting_that_is_away_is_not_waited_for() -> None:
    clock = ManualClock()
    scheduler = _StartingScheduler(clock)
    scheduler.has_answered, scheduler.accounting_error = True, "Slurm answers no account."
    state = InMemoryStateView(InMemoryStateStore(clock), "")
    await _read(scheduler, state, asyncio.Event(), _LONG_S)


async def test_it_does_not_wait_for_ever() -> None:
    clock = ManualClock()
    state = InMemoryStateView(InMemoryStateStore(clock), "")
    await _read(_StartingScheduler(clock), state, asyncio.Event(), 0.0)


async def test_a_stop_ends_it() -> None:
    clock = ManualClock()
    state = InMemoryStateView(InMemoryStateStore(clock), "")
    stop = asyncio.Event()
    stop.set()
    await _read(_StartingScheduler(clock), state, stop, _LONG_S)
