"""What whoever stands behind the port `NodeOperator` promises: in memory and a real Slurm alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.operator import SlurmNodeOperator
from lattice.domain.node import Node, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.domain.operation import NodeOperator
from lattice.features.nodes.service.drains import DrainTerms, FailedNodeDrain
from tests.contract.gates import gate_administration
from tests.eventually import eventually_async
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.judged_nodes import JudgedNodes, KeptActs
from tests.fakes.manual_clock import ManualClock

NODES = NodeSet(["n1", "n2"])


@pytest.fixture(params=["in memory", pytest.param("slurm", marks=pytest.mark.lab)])
def operator(request: pytest.FixtureRequest) -> Iterator[NodeOperator]:
    if request.param == "in memory":
        scheduler = InMemoryScheduler(ManualClock())
        scheduler.nodes = [
            Node(name=name, state=NodeState.READY, slurm_state="idle")
            for name in ("n1", "n2", "n3")
        ]
        fake = InMemoryNodeOperator(scheduler)
        fake.partitions = {"batch": None}
        yield fake
        return
    lab = request.getfixturevalue("lab")
    lab.jobs.cancel_all()
    commands = SlurmCommands(lab.layout.slurm_conf, prefix=lab.control.room.argv([]))
    try:
        yield SlurmNodeOperator(commands, gate_administration(lab))
    finally:
        lab.ctl(["scontrol", "update", "nodename=n[1-3]", "state=resume"], check=False)


@pytest.mark.spec("OPS-4")
async def test_a_node_goes_out_and_comes_back(operator: NodeOperator) -> None:
    everything = NodeSet(["n1", "n2", "n3"])
    assert await operator.states(everything) == dict.fromkeys(everything, NodeState.READY)
    await operator.drain(NODES, "olga: 'bad' \"DIMM\" = 3; $(x) 日本", by="olga")
    await operator.drain(NODES, "again", by="olga")
    assert await operator.states(everything) == {
        "n1": NodeState.DRAINED,
        "n2": NodeState.DRAINED,
        "n3": NodeState.READY,
    }
    await operator.resume(NODES, by="olga")
    await until_ready(operator)
    await operator.disable(NODES, "olga: smoke", by="olga")
    for _ in range(5):
        # Where Slurm takes a node back by itself it is drained at least: out of service.
        assert set((await operator.states(NODES)).values()) <= {NodeState.DOWN, NodeState.DRAINED}
        await asyncio.sleep(0.2)
    await operator.resume(NODES, by="olga")
    await until_ready(operator)


@pytest.mark.spec("AUTH-4")
async def test_a_partition_that_names_no_accounts_admits_every_one(
    operator: NodeOperator,
) -> None:
    assert (await operator.admitted())["batch"] is None


@pytest.mark.spec("DIAG-4", "OPS-4")
async def test_a_node_in_failure_is_drained_once_and_only_a_person_puts_it_back(
    operator: NodeOperator,
) -> None:
    clock, journal = ManualClock(), KeptActs()
    nodes = JudgedNodes(clock, "n1", "n2", "n3")
    nodes.fail("n1", "n2")
    terms = DrainTerms(after_s=0.0, most_per_hour=1)
    store = InMemoryStateStore(clock)
    servers = [
        FailedNodeDrain(nodes, lambda: {"n1", "n2", "n3"}, operator, store, journal, clock, terms)
        for _ in range(2)
    ]
    for each in servers:
        await each.check()
    everything = NodeSet(["n1", "n2", "n3"])
    states = await operator.states(everything)
    assert states == {
        "n1": NodeState.DRAINED,
        "n2": NodeState.READY,
        "n3": NodeState.READY,
    }, "one an hour"
    assert journal.named("drain") == ["n1"]
    await operator.resume(NodeSet(["n1"]), by="olga")
    await until_ready(operator)
    for each in servers:
        clock.advance(600)
        await each.check()
    assert set((await operator.states(everything)).values()) == {NodeState.READY}


async def until_ready(operator: NodeOperator) -> None:
    """Right after it was put back a node may count as not responding."""

    async def states() -> set[NodeState]:
        found = set((await operator.states(NODES)).values())
        assert found <= {NodeState.READY, NodeState.UNKNOWN}
        return found

    await eventually_async(states, lambda found: found == {NodeState.READY}, pause_s=0.2)
