"""Starts and ends of sensitive allocations: each once, whoever restarts and whatever was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.allocation import Allocation, Attempt, ExitCode, State
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.state import Delete, Put
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.audit.service.allocation_runs import RUNS, AllocationRuns
from tests.fakes.audit import AuditReplica, audit_replica
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

KEY = SigningKey.generate()
VIEWS = Vclusters(
    (
        Vcluster("batch", VclusterKind.HPC, "batch"),
        Vcluster("clinic", VclusterKind.SENSITIVE, "clinic"),
    )
)
START, END = AuditAct.ALLOCATION_START, AuditAct.ALLOCATION_END


class Server:
    """One server: its log, and what follows the allocations."""

    def __init__(self, site: Site) -> None:
        store = site.state.another()
        self.store = store
        self.audit: AuditReplica = audit_replica(store, site.clock, KEY)
        self.runs = AllocationRuns(store, self.audit.log, site.scheduler, site.views, site.clock)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[AllocationRuns]:
        writer = asyncio.create_task(self.audit.log.run())
        try:
            yield self.runs
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


class Site:
    """A cluster with a sensitive vCluster, and its agreed state."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.scheduler = InMemoryScheduler(self.clock)
        self.views = Vclusters(VIEWS.views)

    async def step(self, server: Server | None = None) -> None:
        """One turn of a server; without one, of a server that has just started."""
        async with (server or Server(self)).up() as runs:
            await runs.step()

    def job(self, number: int = 42, **more: Any) -> Allocation:
        submitted = self.clock.now().replace(microsecond=0)
        more = {"submitted": submitted, "vcluster": "clinic", "partition": "clinic", **more}
        return allocation(number, "alice", "research", **more)

    def begin(self, number: int = 42, **more: Any) -> Allocation:
        job = self.job(number, **more)
        self.scheduler.allocations.append(job)
        return job

    def end(self, job: Allocation, state: State = State.COMPLETED) -> Allocation:
        """The job is over, and Slurm's controller has forgotten it."""
        now = self.clock.now().replace(microsecond=0)
        over = replace(job, state=state, ended=now, exit_code=ExitCode(0))
        self.scheduler.allocations = [
            each for each in self.scheduler.allocations if each.id != job.id
        ]
        self.scheduler.remembered.append(over)
        return over

    async def recorded(self) -> list[tuple[AuditAct, str]]:
        chain = Server(self).audit.chain
        await chain.refresh()
        entries = (each for batch in chain.batches for each in batch.entries)
        found = [each for each in entries if each.act is not AuditAct.KEY_CHANGE]
        return [(each.act, each.allocation.partition("@")[0]) for each in found]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("AUDIT-3")
async def test_a_start_and_an_end_are_each_recorded_once(site: Site) -> None:
    server = Server(site)
    await site.step(server)
    job = site.begin()
    for _ in range(3):
        await site.step(server)
        await site.step()
    assert await site.recorded() == [(START, "42")]
    site.scheduler.allocations = [
        replace(job, state=State.FAILED, ended=site.clock.now(), exit_code=ExitCode(3))
    ]
    for _ in range(3):
        await site.step(server)
        await site.step()
    assert await site.recorded() == [(START, "42"), (END, "42")]
    await server.audit.chain.refresh()
    start, end = [each for batch in server.audit.chain.batches for each in batch.entries][-2:]
    assert (start.owner, start.of_tenant, start.target) == ("alice", "physics", "clinic")
    assert start.detail.endswith("Z on n1")
    assert end.detail.endswith("failed, exit code 3:0")


async def test_only_sensitive_allocations_are_recorded(site: Site) -> None:
    await site.step()
    site.begin(1, vcluster="batch", partition="batch")
    site.begin(2, vcluster=None)
    site.begin(3, state=State.PENDING, started=None, nodes="")
    site.begin(4, first_submitted=None)
    site.begin(5)
    await site.step()
    assert await site.recorded() == [(START, "5")]


async def test_a_site_without_sensitive_work_costs_nothing(site: Site) -> None:
    site.views.views = VIEWS.views[:1]
    site.begin(vcluster="batch", partition="batch")
    await site.step()
    assert site.scheduler.questions == []
    assert site.state.space.entries == {}


@pytest.mark.spec("AUDIT-2", "AUDIT-3")
async def test_runs_that_all_servers_missed_are_recorded_once(site: Site) -> None:
    await site.step()
    before = site.begin(1)
    await site.step()
    site.clock.advance(60)
    unseen = site.begin(2)
    site.clock.advance(60)
    site.end(before)
    site.end(unseen, State.TIMEOUT)
    site.clock.advance(12 * 3600)
    after = site.begin(3)
    await site.step()
    await site.step()
    assert sorted(await site.recorded()) == sorted(
        [(START, "1"), (END, "1"), (START, "2"), (END, "2"), (START, "3")]
    )
    site.end(after)
    for _ in range(4):
        site.clock.advance(3600)
        await site.step()
    assert len(await site.recorded()) == 6
    assert not [each for each in site.state.space.entries if each.startswith(RUNS)]


async def test_what_ended_before_the_first_turn_is_not_recorded(site: Site) -> None:
    job = site.begin()
    site.clock.advance(60)
    site.end(job)
    site.clock.advance(60)
    await site.step()
    assert await site.recorded() == []


async def test_an_end_of_which_accounting_learns_late_is_recorded(site: Site) -> None:
    server = Server(site)
    job = site.begin()
    await site.step(server)
    site.clock.advance(60)
    over = site.end(job)
    site.scheduler.remembered.clear()
    for _ in range(10):
        site.clock.advance(1800)
        await site.step(server)
    assert await site.recorded() == [(START, "42")]
    site.scheduler.remembered.append(over)
    site.clock.advance(130)
    await site.step(server)
    assert await site.recorded() == [(START, "42"), (END, "42")]


async def test_each_attempt_of_a_requeued_allocation_is_recorded(site: Site) -> None:
    server = Server(site)
    await site.step(server)
    job = site.begin()
    await site.step(server)
    site.clock.advance(300)
    now = site.clock.now().replace(microsecond=0)
    first = Attempt(
        number=1, state=State.PREEMPTED, submitted=job.submitted, started=job.started, ended=now,
        nodes="n1",
    )  # fmt: skip
    second = replace(first, number=2, state=State.RUNNING, started=now + timedelta(seconds=1))
    second = replace(second, ended=None)
    again = replace(job, attempt=2, started=second.started, attempts=(first, second))
    site.scheduler.allocations = [again]
    await site.step(server)
    assert await site.recorded() == [(START, "42"), (END, "42"), (START, "42")]


@pytest.mark.parametrize("where", [START, END])
async def test_a_crash_before_the_record_of_an_entry_gives_no_second_entry(
    site: Site, where: AuditAct, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.step()
    site.end(site.begin())

    def crash(name: str) -> None:
        if name == {START: "audit.run.started", END: "audit.run.ended"}[where]:
            raise KeyboardInterrupt

    module = "lattice.features.audit.service.allocation_runs.failpoint"
    with monkeypatch.context() as patched:
        patched.setattr(module, crash)
        with pytest.raises(KeyboardInterrupt):
            await site.step()
    await site.step()
    assert await site.recorded() == [(START, "42"), (END, "42")]


async def test_two_servers_at_once_write_one_entry(site: Site) -> None:
    await site.step()
    site.end(site.begin(1))
    site.begin(2)
    await asyncio.gather(*(site.step() for _ in range(4)))
    assert sorted(await site.recorded()) == sorted([(START, "1"), (END, "1"), (START, "2")])


async def test_what_can_not_be_recorded_now_is_recorded_later(site: Site) -> None:
    server = Server(site)
    await site.step(server)
    site.begin()
    server.store.away = True
    with pytest.raises((Unavailable, SensitiveAuditRequired)):
        await site.step(server)
    server.store.away = False
    site.scheduler.past_down = True
    site.clock.advance(200)
    with pytest.raises(Unavailable):
        await site.step(server)
    assert await site.recorded() == [(START, "42")]


async def test_a_record_that_no_server_signed_hides_no_run(site: Site) -> None:
    server = Server(site)
    await site.step(server)
    job = site.begin()
    assert job.started is not None
    key = f"{RUNS}{job.ref}/{int(job.started.timestamp())}"
    # The signed store shows such a record as empty.
    await site.state.commit([], [Put(key, b"")])
    await site.step(server)
    assert await site.recorded() == [(START, "42")]
    await site.state.commit([], [Delete(key)])
    await site.step(server)
    assert await site.recorded() == [(START, "42")], "the entry is found by its event id"
