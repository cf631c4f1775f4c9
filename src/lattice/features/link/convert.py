"""The health of a node, as a dataclass and as a protobuf message."""

from __future__ import annotations

from lattice.base.text import inert
from lattice.domain.node import HealthState, NodeHealth
from lattice.wire.convert import message_of
from lattice.wire.v1 import link_pb2 as pb

_MOST_FAULTS = 8
_LONGEST_FAULT = 160
_LONGEST_LACK = 400


def health_message(health: NodeHealth) -> pb.NodeHealth:
    return message_of(health, pb.NodeHealth)


def health_of(message: pb.NodeHealth) -> NodeHealth:
    """The health that an agent reported, cut to what a record may hold."""
    lacks = tuple(inert(each)[:_LONGEST_LACK] for each in message.lacks[:_MOST_FAULTS])
    try:
        health = HealthState(message.health)
    except ValueError:
        return NodeHealth(lacks=lacks)
    faults = (inert(each)[:_LONGEST_FAULT] for each in message.words[:_MOST_FAULTS])
    return NodeHealth(health, tuple(faults), lacks)
