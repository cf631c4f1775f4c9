"""What is counted of jobs, nodes and agents, and what is not shown while nobody knows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.allocation import Reason, State
from lattice.domain.node import AgentFacts, HealthState, Node, NodeHealth, NodeState
from lattice.domain.presence import PresenceReading
from lattice.domain.scheduler import SchedulerReading
from lattice.features.monitoring.service.cluster import MOST_ACCOUNTS, ClusterCounts
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.judged_nodes import JudgedNodes
from tests.fakes.manual_clock import ManualClock


class HidingScheduler(InMemoryScheduler):
    """Slurm hides records from its reader."""

    def live(self) -> SchedulerReading:
        found = super().live()
        return SchedulerReading(found.cluster, replace(found.source, incomplete="PrivateData"))


class ReportingNodes(JudgedNodes):
    """Agents that report facts of themselves."""

    def __init__(self, clock: ManualClock, **facts: AgentFacts) -> None:
        super().__init__(clock, *facts)
        self.facts = facts

    def presences(self) -> PresenceReading:
        found = super().presences()
        records = {
            name: replace(each, health=NodeHealth(each.health.health, agent=self.facts[name]))
            for name, each in found.records.items()
        }
        return PresenceReading(records, {}, found.source)


def shown(counts: ClusterCounts) -> dict[tuple[str, ...], float]:
    return {(each.series, *each.labels): each.value for each in counts.values()}


def busy(clock: ManualClock) -> InMemoryScheduler:
    scheduler = InMemoryScheduler(clock)
    reason = Reason("AssocGrpCpuLimit", "")
    scheduler.allocations = [
        allocation(1, "alice", "research"),
        allocation(2, "bob", "genomics"),
        allocation(3, "bob", "genomics", state=State.PENDING, reason=reason, partition="gpu"),
        allocation(4, "bob", "genomics", state=State.PENDING, partition="gpu"),
        allocation(5, "bob", "genomics", state=State.COMPLETING),
        allocation(6, "bob", "genomics", state=State.COMPLETED),
    ]
    scheduler.nodes = [
        Node(name="n1", state=NodeState.READY, slurm_state="mixed"),
        Node(name="n2", state=NodeState.READY, slurm_state="idle"),
        Node(name="n3", state=NodeState.DRAINED, slurm_state="idle+drain"),
    ]
    return scheduler


@pytest.mark.spec("OPS-8")
async def test_jobs_and_nodes_are_counted() -> None:
    clock = ManualClock()
    agents = JudgedNodes(clock, "n1", "n2")
    agents.fail("n2")
    counts = ClusterCounts(busy(clock), agents, names=True)
    assert shown(counts) == {}, "nothing was counted yet"
    await counts.count()
    found = shown(counts)
    assert found["lattice_jobs", "running"] == 2
    assert found["lattice_jobs", "pending"] == 2
    assert found["lattice_jobs", "completing"] == 1
    assert found["lattice_jobs", "suspended"] == 0
    assert ("lattice_jobs", "completed") not in found
    assert found["lattice_account_jobs", "genomics", "running"] == 1
    assert found["lattice_jobs_pending", "gpu", "limit"] == 1
    assert found["lattice_jobs_pending", "gpu", "priority"] == 1
    assert found["lattice_nodes", "ready", "healthy"] == 1
    assert found["lattice_nodes", "ready", "failure"] == 1
    assert found["lattice_nodes", "drained", "unknown"] == 1


@pytest.mark.spec("OPS-8")
async def test_accounts_are_shown_only_by_a_setting() -> None:
    clock = ManualClock()
    counts = ClusterCounts(busy(clock), JudgedNodes(clock), names=False)
    await counts.count()
    text = repr(tuple(counts.values()))
    assert "lattice_jobs_pending" in text
    for name in ("genomics", "research", "bob", "alice", "work-1"):
        assert name not in text


@pytest.mark.spec("OPS-8", "ALLOC-7")
async def test_what_an_absent_engine_would_tell_is_absent() -> None:
    clock = ManualClock()
    scheduler, agents = busy(clock), JudgedNodes(clock, "n1")
    counts = ClusterCounts(scheduler, agents, names=False)
    await counts.count()
    assert ("lattice_jobs", "running") in shown(counts)
    scheduler.down = True
    clock.advance(60)
    assert shown(counts) == {}
    scheduler.down = False
    agents.seen = False
    await counts.count()
    assert shown(counts)["lattice_nodes", "ready", "unknown"] == 2


async def test_nothing_is_shown_of_a_slurm_that_never_answered() -> None:
    clock = ManualClock()
    scheduler = busy(clock)
    scheduler.down = True
    counts = ClusterCounts(scheduler, JudgedNodes(clock), names=False)
    await counts.count()
    assert shown(counts) == {}


@pytest.mark.spec("OPS-8")
async def test_counts_of_a_slurm_that_hides_records_are_absent() -> None:
    clock = ManualClock()
    scheduler = HidingScheduler(clock)
    scheduler.allocations = busy(clock).allocations
    counts = ClusterCounts(scheduler, JudgedNodes(clock), names=False)
    await counts.count()
    assert shown(counts) == {}


@pytest.mark.spec("OPS-8", "LIMIT-4")
async def test_accounts_have_a_bound() -> None:
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock)
    scheduler.allocations = [
        allocation(number, "alice", f"account{number}") for number in range(1, MOST_ACCOUNTS + 31)
    ]
    counts = ClusterCounts(scheduler, JudgedNodes(clock), names=True)
    await counts.count()
    accounts = {
        each.labels[0]: each.value
        for each in counts.values()
        if each.series == "lattice_account_jobs"
    }
    assert len(accounts) == MOST_ACCOUNTS + 1
    assert accounts["other"] == 30
    assert sum(accounts.values()) == MOST_ACCOUNTS + 30


@pytest.mark.spec("OPS-8")
async def test_spools_and_clocks_of_linked_agents() -> None:
    clock = ManualClock()
    agents = ReportingNodes(
        clock,
        n1=AgentFacts(spool_bytes=100, spool_most_bytes=1000, clock_ahead_s=-3.0),
        n2=AgentFacts(spool_bytes=600, spool_most_bytes=1000, clock_ahead_s=0.5),
        n3=AgentFacts(),
        n4=AgentFacts(spool_bytes=999, spool_most_bytes=1000),
    )
    agents.judge("n4", HealthState.HEALTHY, linked=False)
    counts = ClusterCounts(InMemoryScheduler(clock), agents, names=False)
    await counts.count()
    found = shown(counts)
    assert found["lattice_agents_spool_bytes",] == 700
    assert found["lattice_agents_spool_fullest_ratio",] == 0.6
    assert found["lattice_agents_clock_offset_seconds",] == 3.0


async def test_what_no_agent_reports_is_absent() -> None:
    clock = ManualClock()
    counts = ClusterCounts(
        InMemoryScheduler(clock), ReportingNodes(clock, n1=AgentFacts()), names=False
    )
    await counts.count()
    assert not [each for each in shown(counts) if each[0].startswith("lattice_agents")]
