"""Nodes in failure are drained where the site says so: once, few an hour, and never in doubt."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.drains import (
    AGAIN_AFTER_S,
    HOUR_S,
    LEDGER,
    MOST_CLAIMS,
    BadLedger,
    DrainLedger,
    claimed,
    has_room,
    read_ledger,
    written,
)
from lattice.domain.node import HealthState, Node, NodeState
from lattice.domain.nodeset import NodeSet
from lattice.features.nodes.service.drains import DrainTerms, FailedNodeDrain, in_service
from lattice.server.config.sections import NodeAgentSection
from tests.fakes.in_memory_operator import InMemoryNodeOperator
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.judged_nodes import BROKEN_CARD, JudgedNodes, KeptActs
from tests.fakes.manual_clock import ManualClock

NAMES = tuple(f"n{number}" for number in range(1, 9))
AFTER_S = 60.0


class Cluster:
    """Eight nodes, one Slurm, one agreed state, and as many servers as are made."""

    def __init__(self, *, most_per_hour: int = 4) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.nodes = [
            Node(name=name, state=NodeState.READY, slurm_state="idle") for name in NAMES
        ]
        self.operator = InMemoryNodeOperator(self.scheduler)
        self.store = InMemoryStateStore(self.clock)
        self.nodes = JudgedNodes(self.clock, *NAMES)
        self.journal = KeptActs()
        self.terms = DrainTerms(after_s=AFTER_S, most_per_hour=most_per_hour)
        self.server = self.another()

    def another(self) -> FailedNodeDrain:
        return FailedNodeDrain(
            self.nodes,
            lambda: in_service(self.scheduler),
            self.operator,
            self.store.another(),
            self.journal,
            self.clock,
            self.terms,
        )

    async def pass_(self, seconds: float, *servers: FailedNodeDrain) -> None:
        """Every server looks, as often as it does."""
        for _ in range(max(1, int(seconds // 5))):
            self.clock.advance(min(seconds, 5.0))
            for each in servers or (self.server,):
                await each.check()

    @property
    def drained(self) -> list[str]:
        return [nodes for act, nodes, _ in self.operator.acts if act == "drain"]


# What is not drained.


@pytest.mark.spec("DIAG-4")
async def test_a_site_that_says_nothing_drains_its_nodes_itself() -> None:
    assert NodeAgentSection().drain_terms is None
    said = NodeAgentSection(drain_failed=True, drain_after_s=5, drain_most_per_hour=2)
    assert said.drain_terms == DrainTerms(after_s=5, most_per_hour=2)


@pytest.mark.spec("DIAG-4")
@pytest.mark.parametrize("health", [HealthState.UNKNOWN, HealthState.HEALTHY, HealthState.WARNING])
async def test_a_node_that_is_not_in_failure_stays(health: HealthState) -> None:
    cluster = Cluster()
    cluster.nodes.judge("n1", health, "7 GPUs instead of 8")
    await cluster.pass_(600)
    assert cluster.operator.acts == []


@pytest.mark.spec("DIAG-4")
async def test_a_failure_that_passes_drains_nothing() -> None:
    cluster = Cluster()
    for _ in range(5):
        cluster.nodes.fail("n1")
        await cluster.pass_(AFTER_S - 5)
        cluster.nodes.judge("n1", HealthState.HEALTHY)
        await cluster.pass_(5)
    assert cluster.operator.acts == []


@pytest.mark.spec("DIAG-4")
async def test_what_a_lost_agent_said_drains_nothing() -> None:
    cluster = Cluster()
    cluster.nodes.judge("n1", HealthState.FAILURE, "GPU is lost", linked=False)
    await cluster.pass_(600)
    assert cluster.operator.acts == []


@pytest.mark.spec("DIAG-4")
async def test_a_server_that_sees_nothing_drains_nothing_and_counts_anew() -> None:
    cluster = Cluster()
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S - 5)
    cluster.nodes.seen = False
    await cluster.pass_(600)
    assert cluster.operator.acts == []
    cluster.nodes.seen = True
    await cluster.pass_(AFTER_S - 5)
    assert cluster.operator.acts == []
    await cluster.pass_(10)
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
async def test_while_slurm_is_silent_nothing_is_claimed() -> None:
    cluster = Cluster()
    cluster.scheduler.live()
    cluster.nodes.fail("n1")
    cluster.scheduler.down = True
    await cluster.pass_(600)
    assert await cluster.store.get(LEDGER) is None
    cluster.scheduler.down = False
    await cluster.pass_(5)
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
@pytest.mark.parametrize(
    "state", [NodeState.DRAINING, NodeState.DRAINED, NodeState.DOWN, NodeState.UNKNOWN]
)
async def test_a_node_that_is_out_already_is_left_with_its_reason(state: NodeState) -> None:
    cluster = Cluster()
    cluster.scheduler.nodes[0] = Node(
        name="n1", state=state, slurm_state="x", reason="olga: bad DIMM"
    )
    cluster.nodes.fail("n1")
    await cluster.pass_(600)
    assert cluster.operator.acts == []
    assert cluster.journal.acts == []
    assert await cluster.store.get(LEDGER) is None


@pytest.mark.spec("DIAG-4")
async def test_slurm_is_asked_again_before_a_node_is_claimed() -> None:
    """What was last read may be older than what an operator did a second ago."""
    cluster = Cluster()
    cluster.nodes.fail("n1")
    read = frozenset(NAMES)
    server = FailedNodeDrain(
        cluster.nodes,
        lambda: read,
        cluster.operator,
        cluster.store,
        cluster.journal,
        cluster.clock,
        cluster.terms,
    )
    await cluster.operator.drain(NodeSet(["n1"]), "olga: bad DIMM", by="olga")
    await cluster.pass_(600, server)
    assert [reason for _, _, reason in cluster.operator.acts] == ["olga: bad DIMM"]


# What is drained, and how.


@pytest.mark.spec("DIAG-4")
async def test_a_node_in_failure_is_drained_with_the_rule_and_what_was_seen() -> None:
    cluster = Cluster()
    cluster.nodes.fail("n3")
    await cluster.pass_(AFTER_S)
    assert cluster.drained == []
    await cluster.pass_(5)
    (act,) = cluster.operator.acts
    reason = f"lattice: gpu_health: failure: {BROKEN_CARD} reported XID 79: it fell off the bus"
    assert act == ("drain", "n3", reason)
    assert cluster.journal.acts == [("drain", "n3", "lattice-server", reason)]
    assert cluster.server.counts.drained_total == 1


@pytest.mark.spec("DIAG-4")
async def test_work_goes_on() -> None:
    cluster = Cluster()
    cluster.operator.busy = {"n3"}
    cluster.nodes.fail("n3")
    await cluster.pass_(AFTER_S + 5)
    assert (await cluster.operator.states(NodeSet(["n3"])))["n3"] is NodeState.DRAINING


async def test_words_of_an_agent_are_made_harmless_and_cut() -> None:
    cluster = Cluster()
    cluster.nodes.judge("n1", HealthState.FAILURE, "\x1b[2Jowned\n" + "x" * 1000)
    await cluster.pass_(AFTER_S + 5)
    ((_, _, reason),) = cluster.operator.acts
    assert len(reason) <= 200
    assert reason.isprintable()


# Once.


@pytest.mark.spec("DIAG-4")
async def test_a_node_is_drained_once_and_an_operator_may_put_it_back() -> None:
    cluster = Cluster()
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S + 5)
    await cluster.operator.resume(NodeSet(["n1"]), by="olga")
    await cluster.pass_(3 * HOUR_S)
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
async def test_nor_does_a_server_that_starts_anew_drain_it_again() -> None:
    cluster = Cluster()
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S + 5)
    await cluster.operator.resume(NodeSet(["n1"]), by="olga")
    await cluster.pass_(600, cluster.another())
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
async def test_the_next_failure_of_a_node_that_was_sound_is_another() -> None:
    cluster = Cluster()
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S + 5)
    cluster.nodes.judge("n1", HealthState.UNKNOWN)
    await cluster.pass_(60)
    cluster.nodes.fail("n1")
    await cluster.operator.resume(NodeSet(["n1"]), by="olga")
    await cluster.pass_(AFTER_S + 5)
    assert cluster.drained == ["n1"], "that nobody looked is not that it was sound"
    cluster.nodes.judge("n1", HealthState.HEALTHY)
    await cluster.pass_(5)
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S + 5)
    assert cluster.drained == ["n1", "n1"]


@pytest.mark.spec("DIAG-4")
async def test_of_many_servers_one_acts() -> None:
    cluster = Cluster()
    servers = [cluster.another() for _ in range(4)]
    cluster.nodes.fail("n1", "n2")
    for each in servers:
        await each.check()
    cluster.clock.advance(AFTER_S + 1)
    for _ in range(4):
        await asyncio.gather(*(each.check() for each in servers))
    assert sorted(cluster.drained) == ["n1", "n2"]
    assert sum(each.counts.drained_total for each in servers) == 2


@pytest.mark.spec("DIAG-4")
async def test_a_drain_that_did_not_work_is_tried_again_later_and_counts_once() -> None:
    cluster = Cluster(most_per_hour=1)
    cluster.operator.refuses = True
    cluster.nodes.fail("n1")
    with pytest.raises(ConfigurationError):
        await cluster.pass_(AFTER_S + 5)
    await cluster.pass_(AGAIN_AFTER_S - 10)
    assert cluster.journal.named("drain failed") == ["n1"]
    cluster.operator.refuses = False
    await cluster.pass_(20)
    assert cluster.drained == ["n1"]
    ledger = await ledger_of(cluster.store)
    assert len(ledger.made) == 1
    assert ledger.claims["n1"].done


@pytest.mark.spec("DIAG-4")
async def test_a_server_that_dies_after_it_drained_has_drained() -> None:
    """Another finds the node drained, says so, and leaves the reason as it is."""
    cluster = Cluster()
    cluster.nodes.fail("n1")
    now = cluster.clock.now().timestamp()
    await cluster.store.put(LEDGER, written(claimed(DrainLedger(), "n1", now)))
    await cluster.operator.drain(NodeSet(["n1"]), "lattice: gpu_health: failure: lost", by="olga")
    server = FailedNodeDrain(
        cluster.nodes,
        lambda: frozenset(NAMES),
        cluster.operator,
        cluster.store,
        cluster.journal,
        cluster.clock,
        cluster.terms,
    )
    await cluster.pass_(AGAIN_AFTER_S + AFTER_S + 5, server)
    await cluster.operator.resume(NodeSet(["n1"]), by="olga")
    await cluster.pass_(600, server)
    assert cluster.drained == ["n1"]
    assert (await ledger_of(cluster.store)).claims["n1"].done


@pytest.mark.spec("DIAG-4")
async def test_one_that_dies_before_it_drained_is_followed_by_another() -> None:
    cluster = Cluster(most_per_hour=1)
    cluster.nodes.fail("n1")
    now = cluster.clock.now().timestamp()
    await cluster.store.put(LEDGER, written(claimed(DrainLedger(), "n1", now)))
    await cluster.pass_(AGAIN_AFTER_S + AFTER_S + 5)
    assert cluster.drained == ["n1"]


# Few.


@pytest.mark.spec("DIAG-4")
async def test_no_more_than_so_many_within_an_hour_and_that_is_said_once() -> None:
    cluster = Cluster(most_per_hour=2)
    cluster.nodes.fail(*NAMES)
    await cluster.pass_(HOUR_S - 120)
    assert cluster.drained == ["n1", "n2"]
    assert cluster.journal.named("drain held back") == list(NAMES[2:])
    assert cluster.server.counts.held_back_total == 6
    held = next(detail for act, _, _, detail in cluster.journal.acts if act == "drain held back")
    assert held.startswith("2 nodes an hour are drained at most; lattice: gpu_health: failure: ")
    await cluster.pass_(HOUR_S)
    assert cluster.drained == list(NAMES[:4])


@pytest.mark.spec("DIAG-4")
async def test_a_node_that_is_sound_again_does_not_make_room() -> None:
    cluster = Cluster(most_per_hour=1)
    cluster.nodes.fail("n1")
    await cluster.pass_(AFTER_S + 5)
    cluster.nodes.judge("n1", HealthState.HEALTHY)
    cluster.nodes.fail("n2")
    await cluster.pass_(600)
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.sampled_from(
                [HealthState.FAILURE, HealthState.FAILURE, HealthState.HEALTHY, HealthState.UNKNOWN]
            ),
            st.sampled_from(["", "undrain"]),
            st.integers(5, 900),
        ),
        max_size=30,
    ),
    st.integers(1, 3),
)
async def test_whatever_happens_no_hour_has_more_and_no_failure_is_drained_twice(
    events: list[tuple[str, HealthState, str, int]], most: int
) -> None:
    cluster = Cluster(most_per_hour=most)
    servers = [cluster.server, cluster.another()]
    acted: list[tuple[float, str]] = []
    sound_since: dict[str, bool] = dict.fromkeys(NAMES, True)
    for node, health, act, passed_s in events:
        cluster.nodes.judge(node, health, "words")
        if act:
            await cluster.operator.resume(NodeSet([node]), by="olga")
        for _ in range(passed_s // 60 + 1):
            cluster.clock.advance(60)
            for server in servers:
                before = len(cluster.drained)
                await server.check()
                if health is HealthState.HEALTHY:
                    sound_since[node] = True
                for each in cluster.drained[before:]:
                    assert sound_since[each], f"{each} was drained twice for one failure"
                    sound_since[each] = False
                    acted.append((cluster.clock.now().timestamp(), each))
    for at, _ in acted:
        assert sum(at - HOUR_S < other <= at for other, _ in acted) <= most


# What is written down.


async def ledger_of(store: InMemoryStateStore) -> DrainLedger:
    entry = await store.get(LEDGER)
    return read_ledger(entry.value if entry else None)


@pytest.mark.spec("DIAG-4")
async def test_a_ledger_that_does_not_read_drains_nothing() -> None:
    cluster = Cluster()
    await cluster.store.put(LEDGER, b'{"claims": 3}')
    cluster.nodes.fail("n1")
    with pytest.raises(BadLedger):
        await cluster.pass_(600)
    assert cluster.operator.acts == []


async def test_the_ledger_has_an_end() -> None:
    ledger = DrainLedger()
    for number in range(MOST_CLAIMS):
        ledger = claimed(ledger, f"node-with-a-long-name-{number:05}", number * HOUR_S)
    now = MOST_CLAIMS * HOUR_S * 2
    assert not has_room(ledger, "one-more", now, 4)
    assert len(written(ledger)) < 64 * 1024


@pytest.mark.spec("DIAG-4")
async def test_it_goes_on_whatever_fails() -> None:
    cluster = Cluster()
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        cluster.clock.advance(30)
        if looks == 2:
            cluster.store.away = True
        if looks == 6:
            cluster.store.away = False
        if looks > 20:
            raise asyncio.CancelledError

    server = FailedNodeDrain(
        cluster.nodes,
        lambda: in_service(cluster.scheduler),
        cluster.operator,
        cluster.store,
        cluster.journal,
        cluster.clock,
        cluster.terms,
        sleep=sleep,
    )
    cluster.nodes.fail("n1")
    with pytest.raises(asyncio.CancelledError):
        await server.run()
    assert cluster.drained == ["n1"]


@pytest.mark.spec("DIAG-4")
async def test_a_state_that_does_not_answer_drains_nothing() -> None:
    cluster = Cluster()
    server = FailedNodeDrain(
        cluster.nodes,
        lambda: in_service(cluster.scheduler),
        cluster.operator,
        cluster.store,
        cluster.journal,
        cluster.clock,
        cluster.terms,
    )
    cluster.store.away = True
    cluster.nodes.fail("n1")
    with pytest.raises(Unavailable):
        await cluster.pass_(600, server)
    assert cluster.operator.acts == []
