"""What an agent reports of itself: old agents report nothing, hostile ones are cut."""

from __future__ import annotations

import math

import pytest

from lattice.domain.node import AgentFacts, HealthState, NodeHealth
from lattice.domain.presence import Link, read_link, written
from lattice.domain.slices import (
    NodeSlice,
    SliceCard,
    SliceGuest,
    SliceHost,
    SlicePort,
    SliceState,
)
from lattice.features.link.convert import health_message, health_of
from lattice.wire.v1 import link_pb2 as pb

FACTS = AgentFacts(
    helper="ok",
    latency="the kernel has no BTF",
    spool_bytes=0,
    spool_most_bytes=2**30,
    free_bytes=2**40,
    clock_ahead_s=-0.25,
)


def test_facts_survive_the_link_and_the_agreed_state() -> None:
    health = NodeHealth(HealthState.HEALTHY, agent=FACTS)
    assert health_of(health_message(health)) == health
    link = Link(node="n1", replica="s1", epoch=1, since=1.0, health=health)
    assert read_link("n1", written(link)) == link


SLICE = NodeSlice(
    guest=SliceGuest(
        name="blue",
        gpus=(0, 1),
        state=SliceState.WARNING,
        faults=("GPU-1 is lost (GPU is lost)",),
        cards=(SliceCard(uuid="GPU-1", name="A100"),),
        ports=(
            SlicePort(name="eth0", kind="ethernet", up=True, speed_bits=1e10),
            SlicePort(name="mlx5_0/1", kind="rdma"),
        ),
    ),
    host=SliceHost(address="10.0.8.2", bridge="br0", netdata="http://n1:19999"),
)


@pytest.mark.spec("SLICE-1")
def test_slices_survive_the_link_and_the_agreed_state() -> None:
    health = NodeHealth(HealthState.HEALTHY, slices=(SLICE,))
    assert health_of(health_message(health)) == health
    link = Link(node="n1", replica="s1", epoch=1, since=1.0, health=health)
    assert read_link("n1", written(link)) == link


def test_slices_of_a_hostile_agent_are_cut() -> None:
    message = pb.NodeHealth()
    for _ in range(1000):
        each = message.slices.add()
        each.guest.name = "\x1b" + "x" * 9999
        each.guest.state = "fine"
        each.guest.ports.add(speed_bits=math.nan)
    found = health_of(message).slices
    assert len(found) == 64
    assert found[0].guest.state is SliceState.UNKNOWN
    assert len(found[0].guest.name) <= 160
    assert "\x1b" not in found[0].guest.name
    assert found[0].guest.ports[0].speed_bits is None


def test_an_older_agent_leaves_every_fact_unknown() -> None:
    assert health_of(pb.NodeHealth(health="healthy")).agent == AgentFacts()
    old = b'{"node":"n1","replica":"s1","epoch":1,"since":1.0,"health":{"health":"healthy"}}'
    assert read_link("n1", old).health.agent == AgentFacts()


def test_a_hostile_agent_is_cut_to_what_a_record_may_hold() -> None:
    message = pb.NodeHealth(agent=pb.AgentFacts(helper="\x1b[31m" + "x" * 9999))
    assert len(health_of(message).agent.helper) <= 160
    assert "\x1b" not in health_of(message).agent.helper
    for clock in (math.nan, math.inf, -1e300):
        message = pb.NodeHealth(agent=pb.AgentFacts(clock_ahead_s=clock))
        assert health_of(message).agent.clock_ahead_s is None
