"""What is said of nodes: their own age, and nobody else's work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.domain.node import (
    AgentLink,
    Condition,
    HealthState,
    Node,
    NodeAgent,
    NodeHealth,
    NodeState,
)
from lattice.domain.presence import Presence, PresenceReading
from lattice.domain.scheduler import LiveCluster, SchedulerReading
from lattice.domain.slices import NodeSlice, SliceGuest, SliceHost
from lattice.domain.source import LIVE, Source
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.nodes.service.nodes import NodeService, with_warning
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import ACCOUNTS
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.fakes.presences import NoPresences

ALICE = Actor(sub="sub-alice", user="alice")


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
    answer = await NodeService(scheduler, NoPresences()).nodes(ALICE, frozenset(), "")
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


SLICED = Presence(
    node="n1",
    epoch=1,
    linked=True,
    since=1.0,
    condition=Condition.READY,
    registered=1.0,
    health=NodeHealth(
        slices=(
            NodeSlice(
                guest=SliceGuest(name="blue", gpus=(0,)),
                host=SliceHost(address="10.0.8.2", bridge="br0", netdata="http://n1:19999"),
            ),
        )
    ),
)


class OneAgent:
    def presences(self) -> PresenceReading:
        source = Source(name="agents", ok=True)
        return PresenceReading(records={"n1": SLICED}, links={}, source=source)


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize(
    ("role", "sees"), [(each, each in {Role.SYSTEM_ADMIN, Role.OPERATOR}) for each in Role]
)
async def test_only_operators_see_the_side_of_the_host_of_a_slice(role: Role, sees: bool) -> None:
    scheduler = InMemoryScheduler(ManualClock())
    scheduler.nodes = [Node(name="n1", state=NodeState.READY, slurm_state="idle")]
    service = NodeService(scheduler, OneAgent())
    actor = Actor(sub="1", user="alice", role=role, tenant="physics")
    (listed,) = (await service.nodes(actor, frozenset(), "")).nodes
    shown = (await service.node(actor, "n1")).node
    assert bool(listed.slices) == bool(shown.slices) == sees
    assert ("br0" in repr((listed, shown))) == sees


def claimed_site(**claims: bool) -> NodeService:
    """alice holds n1 and n2; n2 is drained."""
    scheduler = InMemoryScheduler(ManualClock())
    scheduler.accounts = ACCOUNTS
    scheduler.nodes = [
        Node(name=name, state=state, slurm_state="", partitions=("clinic",))
        for name, state in (
            ("n1", NodeState.READY),
            ("n2", NodeState.DRAINED),
            ("n3", NodeState.READY),
        )
    ]
    held = (node_claim("alice", "n1", "n2", tenant="physics"),)
    views = Vclusters((Vcluster("clinic", VclusterKind.SENSITIVE, "clinic"),))
    return NodeService(scheduler, NoPresences(), lambda: views, FixedClaims(held, **claims))


@pytest.mark.spec("OPS-4", "AUDIT-1")
@pytest.mark.parametrize(
    ("actor", "seen"),
    [
        (ALICE, "alice"),
        (Actor(sub="2", user="olga", role=Role.OPERATOR), "alice"),
        (Actor(sub="3", user="ada", role=Role.SYSTEM_ADMIN), "alice"),
        (Actor(sub="4", user="pat", role=Role.TENANT_ADMIN, tenant="physics"), "alice"),
        (Actor(sub="5", user="ben", role=Role.TENANT_ADMIN, tenant="biology"), ""),
        (Actor(sub="6", user="bob", role=Role.CLAIMING_USER), ""),
        (Actor(sub="7", user="rita", role=Role.COMPLIANCE_REVIEWER, tenant="physics"), ""),
    ],
    ids=["claimer", "operator", "system admin", "tenant admin", "of another", "user", "reviewer"],
)
async def test_everybody_sees_that_a_node_is_claimed_and_some_by_whom(
    actor: Actor, seen: str
) -> None:
    service = claimed_site()
    first, second, third = (await service.nodes(actor, frozenset(), "")).nodes
    assert (first.state, first.claimed_by) == (NodeState.CLAIMED, seen)
    # A claim hides nothing that is wrong with a node.
    assert (second.state, second.claimed_by) == (NodeState.DRAINED, seen)
    assert (third.state, third.claimed_by) == (NodeState.READY, "")
    assert (await service.node(actor, "n1")).node == first
    (only,) = (await service.nodes(actor, frozenset({NodeState.CLAIMED}), "")).nodes
    assert only == first


async def test_a_vcluster_counts_its_claimed_nodes() -> None:
    (view,) = (await claimed_site().vclusters()).vclusters
    assert {each.state: each.nodes for each in view.states} == {
        NodeState.READY: 1,
        NodeState.DRAINED: 1,
        NodeState.CLAIMED: 1,
    }


async def test_nodes_are_listed_before_claims_are_known() -> None:
    nodes = (await claimed_site(away=True).nodes(ALICE, frozenset(), "")).nodes
    assert [each.name for each in nodes] == ["n1", "n2", "n3"]


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HealthState.UNKNOWN, HealthState.WARNING),
        (HealthState.HEALTHY, HealthState.WARNING),
        (HealthState.FAILURE, HealthState.FAILURE),
    ],
)
def test_a_check_that_warns_is_a_warning_of_the_node_with_its_figures(
    before: HealthState, after: HealthState
) -> None:
    agent = NodeAgent(link=AgentLink.LINKED, health=before, health_words=("one",))
    node = Node(name="n1", state=NodeState.READY, slurm_state="idle", agent=agent)
    found = with_warning(node, {"n1": "check 7: disk, reading: 12M/s"}).agent
    assert found is not None
    assert (found.health, found.health_words) == (after, ("one", "check 7: disk, reading: 12M/s"))
    assert with_warning(node, {"n2": "check 7"}) is node
    assert with_warning(node, {}) is node
