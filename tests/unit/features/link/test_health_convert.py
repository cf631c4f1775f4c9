"""What an agent reports of itself: old agents report nothing, hostile ones are cut."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from lattice.domain.machine_facts import MachineFact
from lattice.domain.node import AgentFacts, HealthState, NodeHealth
from lattice.domain.presence import Link, read_link, written
from lattice.domain.slices import (
    NodeSlice,
    SliceCard,
    SliceGuest,
    SliceHost,
    SlicePort,
    SliceStart,
    SliceState,
)
from lattice.domain.state import LARGEST_VALUE_BYTES
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
        start=SliceStart(
            boot_id="b",
            reached=datetime(2026, 11, 19, 12, 0, tzinfo=UTC),
            facts=(
                MachineFact(name="boot_seconds", number=12.5),
                MachineFact(name="rdma", reason="there is no RDMA device"),
                MachineFact(name="kernel", text="6.1"),
            ),
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


def test_slices_leave_room_for_the_rest_of_the_record() -> None:
    """A record of more than 64 KiB would not be written, so its node would seem lost."""
    message = pb.NodeHealth(health="healthy")
    for number in range(64):
        guest = message.slices.add().guest
        guest.name = f"slice{number}"
        for _ in range(64):
            guest.ports.add(name="p" * 64, kind="ethernet", up=True)
        guest.start.reached.FromSeconds(1)
        guest.start.facts.add(name="network", text="x" * 300)
    health = health_of(message)
    assert len(health.slices) == 64
    assert health.slices[0].guest.ports
    assert health.slices[-1].guest.name == "slice63"
    assert health.slices[-1].guest.ports == ()
    link = Link(node="n1", replica="s1", epoch=1, since=1.0, health=health)
    assert len(written(link)) < LARGEST_VALUE_BYTES


def test_facts_of_a_start_that_can_not_be_are_absent() -> None:
    message = pb.NodeHealth(health="healthy")
    start = message.slices.add().guest.start
    start.facts.add(name="vcpus", number=math.nan)
    start.facts.add(name="unknown", number=1)
    start.facts.add(name="kernel", text="\x1b[2J6.1")
    (found,) = health_of(message).slices
    assert found.guest.start is not None
    vcpus, kernel = found.guest.start.facts
    assert (vcpus.number, vcpus.reason) == (None, "not reported")
    assert kernel.text.isprintable()


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
