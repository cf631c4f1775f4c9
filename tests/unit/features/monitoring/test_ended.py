"""Each end is counted once, by whichever server is first, over restarts, for an hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.features.monitoring.model import BadCounts
from lattice.features.monitoring.service.ended import COUNTS, ENDED, JOBS, EndedJobs
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock


@dataclass
class Site:
    """Servers with one agreed state; each sees the same Slurm."""

    names: bool = True
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.store = InMemoryStateStore(self.clock)
        self.scheduler = InMemoryScheduler(self.clock)

    def server(self) -> Server:
        store = self.store.another()
        view = WatchedStateView(store, ENDED, self.clock)
        counts = EndedJobs(self.scheduler, store, view, self.clock, names=self.names)
        return Server(store, view, counts)

    def end(self, job_id: int, state: State = State.COMPLETED, *, ago_s: float = 0.0) -> None:
        ended = self.clock.now() - timedelta(seconds=ago_s)
        job = allocation(job_id, "alice", "research", state=state, ended=ended)
        self.scheduler.allocations.append(job)


@dataclass
class Server:
    store: InMemoryStateStore
    view: WatchedStateView
    counts: EndedJobs

    async def count(self) -> bool:
        await self.view.refresh()
        done = await self.counts.count()
        await self.view.refresh()
        return done

    def shown(self, series: str = "lattice_jobs_ended_total") -> dict[tuple[str, ...], float]:
        """What is not zero."""
        return {
            each.labels: each.value
            for each in self.counts.values()
            if each.series == series and each.value
        }


@pytest.mark.spec("OPS-8")
async def test_ends_are_counted_once_by_all_servers_together() -> None:
    site = Site()
    first, second = site.server(), site.server()
    await first.count()
    for number in (1, 2, 3):
        site.end(number)
    site.end(4, State.FAILED)
    for each in (first, second, first, second):
        assert await each.count()
    assert first.shown() == second.shown() == {("completed",): 3, ("failed",): 1}
    users = second.shown("lattice_user_jobs_ended_total")
    assert users == {
        ("alice", "research", "completed"): 3,
        ("alice", "research", "failed"): 1,
    }


@pytest.mark.spec("OPS-8")
async def test_of_two_servers_at_once_one_counts() -> None:
    site = Site()
    first, second = site.server(), site.server()
    await first.count()
    site.end(1)
    await first.view.refresh()
    await second.view.refresh()
    assert await first.counts.count()
    assert not await second.counts.count(), "it had not seen the other's commit"
    assert await second.count()
    assert second.shown() == {("completed",): 1}


@pytest.mark.spec("OPS-8")
async def test_the_count_goes_on_after_a_restart() -> None:
    site = Site()
    await site.server().count()
    site.end(1)
    assert await site.server().count()
    site.clock.advance(100)
    site.end(2)
    restarted = site.server()
    await restarted.count()
    assert restarted.shown() == {("completed",): 2}


async def test_what_ended_before_the_first_server_is_not_counted() -> None:
    site = Site()
    site.end(1, ago_s=60)
    server = site.server()
    for _ in range(3):
        await server.count()
    assert server.shown() == {}
    zeros = {each.labels for each in server.counts.values()}
    assert ("timeout",) in zeros, "an outcome is shown from the start, as 0"


@pytest.mark.spec("OPS-8")
async def test_a_job_that_runs_again_or_still_completes_has_not_ended() -> None:
    site = Site()
    server = site.server()
    await server.count()
    site.scheduler.allocations = [
        allocation(1, "alice", "research", state=State.REQUEUED, ended=site.clock.now()),
        allocation(2, "alice", "research", state=State.COMPLETING, ended=site.clock.now()),
        allocation(3, "alice", "research", state=State.RUNNING),
    ]
    await server.count()
    assert server.shown() == {}
    site.clock.advance(1200)
    late = site.scheduler.allocations[1]
    site.scheduler.allocations = [allocation_ended(late)]
    await server.count()
    assert server.shown() == {("completed",): 1}, "its epilog took twenty minutes"


def allocation_ended(job: Allocation) -> Allocation:
    return allocation(job.job_id, job.user, job.account, state=State.COMPLETED, ended=job.ended)


@pytest.mark.spec("OPS-8", "LIMIT-4")
async def test_keys_of_a_minute_are_removed_and_its_ends_not_counted_again() -> None:
    site = Site()
    server = site.server()
    await server.count()
    site.end(1)
    await server.count()
    assert minutes(server)
    site.clock.advance(2 * 3600)
    await server.count()
    assert not minutes(server)
    await server.count()
    assert server.shown() == {("completed",): 1}


def minutes(server: Server) -> Sequence[str]:
    return [key for key in server.view.entries if key.startswith(JOBS)]


@pytest.mark.spec("OPS-8")
async def test_names_are_not_written_where_they_are_not_shown() -> None:
    site = Site(names=False)
    server = site.server()
    await server.count()
    site.end(1)
    await server.count()
    assert server.shown() == {("completed",): 1}
    assert server.shown("lattice_user_jobs_ended_total") == {}
    entry = await site.store.get(COUNTS)
    assert entry is not None
    assert b"alice" not in entry.value


@pytest.mark.spec("OPS-8")
async def test_without_the_agreed_state_nothing_is_shown_or_counted() -> None:
    site = Site()
    server = site.server()
    assert list(server.counts.values()) == []
    await server.count()
    assert list(server.counts.values())
    server.store.away = True
    with pytest.raises(Unavailable):
        await server.view.refresh()
    site.end(1)
    assert await server.counts.count()
    assert list(server.counts.values()) == []


async def test_counts_that_do_not_read_are_neither_shown_nor_overwritten() -> None:
    site = Site()
    await site.store.put(COUNTS, b"nonsense")
    server = site.server()
    with pytest.raises(BadCounts):
        await server.count()
    assert list(server.counts.values()) == []


async def test_many_ends_at_once_are_counted_over_several_rounds() -> None:
    site = Site()
    server = site.server()
    await server.count()
    site.clock.advance(3000)
    for number in range(1, 31):
        site.end(number, ago_s=60.0 * number)
    for _ in range(5):
        await server.count()
    assert server.shown() == {("completed",): 30}
