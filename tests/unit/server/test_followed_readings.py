"""Who follows the jobs of a cluster reads those that changed, and not all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from lattice.adapters.stateview import WatchedStateView
from lattice.base.signatures import SigningKey
from lattice.domain.allocation import State
from lattice.domain.runsummary import summary_key
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.telemetry import Mode
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.audit.service.allocation_runs import AllocationRuns
from lattice.features.logs.service.retention import Retention, RetentionRules
from lattice.features.monitoring.service.cluster import ClusterCounts
from lattice.features.monitoring.service.ended import ENDED, EndedJobs
from lattice.features.telemetry.service.job_settings_publisher import JobSettingsPublisher
from lattice.features.telemetry.service.modes import MODES, AgreedModes
from lattice.foundation.ended_attempts import EndedAttemptQueue
from lattice.foundation.unfinished import UnfinishedAllocations
from lattice.server.cluster.sensitive_nodes import SensitiveNodes
from tests.fakes.audit import audit_replica
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.in_memory_view import InMemoryStateView
from tests.fakes.judged_nodes import JudgedNodes
from tests.fakes.manual_clock import ManualClock
from tests.fakes.visits import visited_jobs

Tick = Callable[[], Awaitable[object]]
JOBS, CHANGED, SENSITIVE = 60, 7, 50
VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))


class Site:
    """Jobs on a node each; every third has ended, and one is sensitive."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.scheduler.allocations = [self.job(number) for number in range(1, JOBS + 1)]

    def job(self, number: int, **more: Any) -> Any:
        now = self.clock.now()
        if number % 3 == 0:
            more = {"state": State.COMPLETED, "ended": now, "started": now, **more}
        more["vcluster"] = "vault" if number == SENSITIVE else "batch"
        return allocation(number, "alice", "research", nodes=f"n{number}", submitted=now, **more)

    def change(self) -> None:
        """One job ends."""
        at, now = CHANGED - 1, self.clock.now()
        job = replace(self.scheduler.allocations[at], state=State.COMPLETED, ended=now)
        self.scheduler.allocations[at] = job


def attempts(site: Site) -> Tick:
    return EndedAttemptQueue(site.scheduler, site.clock, summary_key, 120.0).due


def counts(site: Site) -> Tick:
    return ClusterCounts(site.scheduler, JudgedNodes(site.clock), names=True).count


def ends(site: Site) -> Tick:
    view = InMemoryStateView(site.state, ENDED)
    counting = EndedJobs(site.scheduler, site.state, view, site.clock, names=True)

    async def tick() -> None:
        # The first begins the count, and the last sees what was committed.
        for _ in range(3):
            await counting.count()

    return tick


def runs(site: Site) -> Tick:
    log = audit_replica(site.state, site.clock, SigningKey.generate()).log
    following = AllocationRuns(site.state, log, site.scheduler, VAULT, site.clock)

    async def tick() -> None:
        await following.step()
        assert following.recorded_total == 1

    return tick


def nodes(site: Site) -> Tick:
    has = SensitiveNodes(site.scheduler, SensitiveWork(VAULT)).has

    async def tick() -> None:
        assert has(f"n{SENSITIVE}")
        assert not has(f"n{CHANGED}")

    return tick


def unfinished(site: Site) -> Tick:
    asked = UnfinishedAllocations(site.scheduler)

    async def tick() -> None:
        assert asked.refs() is not None

    return tick


def settings(site: Site) -> Tick:
    view = WatchedStateView(site.state, MODES, site.clock)
    modes = AgreedModes(site.state, view, site.clock, lambda: None, usual=Mode.PROD, debug_most=5)
    publisher = JobSettingsPublisher(site.scheduler, modes, site.clock)

    async def tick() -> None:
        await view.refresh()
        publisher.check()

    return tick


def sweep(site: Site) -> Tick:
    objects = InMemoryObjectStore(site.clock)
    retention = Retention(objects, site.scheduler, site.clock, RetentionRules(30))
    return lambda: retention.sweep_in_turn(site.state)


@pytest.mark.parametrize(
    "follower", [attempts, counts, ends, nodes, unfinished, settings, sweep, runs]
)
async def test_a_tick_reads_the_jobs_that_changed(follower: Callable[[Site], Tick]) -> None:
    site = Site()
    tick = follower(site)
    await tick()
    site.change()
    with visited_jobs() as visited:
        await tick()
    assert visited <= {CHANGED, SENSITIVE}


async def test_a_walk_shows() -> None:
    site = Site()
    everybody = site.scheduler.live().cluster.allocations
    with visited_jobs() as visited:
        assert not any(each.user == "bob" for each in everybody)
    assert len(visited) == JOBS
