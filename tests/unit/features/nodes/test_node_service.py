"""What is said of nodes: their own age, and nobody else's work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.domain.node import Node, NodeState
from lattice.domain.scheduler import LiveCluster, SchedulerReading
from lattice.domain.source import LIVE, Source
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.nodes.service.nodes import NodeService
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.presences import NoPresences


@pytest.mark.spec("ALLOC-7")
async def test_nodes_tell_their_own_age(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    scheduler = InMemoryScheduler(clock)
    cluster = LiveCluster(
        read_at=clock.now(),
        nodes=[Node(name="n1", state=NodeState.READY, slurm_state="idle")],
        nodes_read_at=clock.now() - timedelta(seconds=4),
    )
    source = Source(name=LIVE, ok=True, as_of=clock.now(), age_s=1.0)
    monkeypatch.setattr(scheduler, "live", lambda: SchedulerReading(cluster, source))
    answer = await NodeService(scheduler, NoPresences()).nodes(frozenset(), "")
    assert answer.sources[0].age_s == 5.0
    assert answer.sources[0].as_of == clock.now() - timedelta(seconds=4)


async def test_vclusters_have_the_nodes_of_their_partition() -> None:
    scheduler = InMemoryScheduler(ManualClock())
    scheduler.nodes = [
        Node(name=name, state=state, slurm_state="", partitions=("gpu", "all"))
        for name, state in (
            ("n1", NodeState.READY),
            ("n2", NodeState.READY),
            ("n3", NodeState.DOWN),
        )
    ]
    views = Vclusters(
        (
            Vcluster("train", VclusterKind.HPC, "gpu", "normal"),
            Vcluster("lost", VclusterKind.SERVICE, "absent"),
        )
    )
    service = NodeService(scheduler, NoPresences(), lambda: views)
    train, lost = (await service.vclusters()).vclusters
    assert (train.name, train.kind, train.partition, train.qos) == (
        "train",
        VclusterKind.HPC,
        "gpu",
        "normal",
    )
    assert train.nodes == 3
    assert {each.state: each.nodes for each in train.states} == {
        NodeState.READY: 2,
        NodeState.DOWN: 1,
    }
    assert (lost.nodes, lost.states) == (0, ())
