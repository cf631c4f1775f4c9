"""The health of a node, as a dataclass and as a protobuf message."""

from __future__ import annotations

import math

from lattice.base.text import inert
from lattice.domain.node import AgentFacts, HealthState, NodeHealth
from lattice.wire.convert import message_of
from lattice.wire.v1 import link_pb2 as pb

_MOST_FAULTS = 8
_LONGEST_FAULT = 160
_LONGEST_LACK = 400
_LARGEST_CLOCK_S = 1e9


def health_message(health: NodeHealth) -> pb.NodeHealth:
    return message_of(health, pb.NodeHealth)


def health_of(message: pb.NodeHealth) -> NodeHealth:
    """The health that an agent reported, cut to what a record may hold."""
    lacks = tuple(inert(each)[:_LONGEST_LACK] for each in message.lacks[:_MOST_FAULTS])
    facts = _facts_of(message.agent)
    try:
        health = HealthState(message.health)
    except ValueError:
        return NodeHealth(lacks=lacks, agent=facts)
    faults = (inert(each)[:_LONGEST_FAULT] for each in message.words[:_MOST_FAULTS])
    return NodeHealth(health, tuple(faults), lacks, facts)


def _facts_of(message: pb.AgentFacts) -> AgentFacts:
    there = {field.name for field, _ in message.ListFields()}

    def size(name: str) -> int | None:
        return getattr(message, name) if name in there else None

    ahead_s = message.clock_ahead_s if "clock_ahead_s" in there else math.nan
    return AgentFacts(
        helper=inert(message.helper)[:_LONGEST_FAULT],
        latency=inert(message.latency)[:_LONGEST_FAULT],
        spool_bytes=size("spool_bytes"),
        spool_most_bytes=size("spool_most_bytes"),
        free_bytes=size("free_bytes"),
        # Not a number, and what no clock can show, are not known.
        clock_ahead_s=ahead_s if abs(ahead_s) < _LARGEST_CLOCK_S else None,
    )
