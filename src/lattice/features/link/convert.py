"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.base.text import inert
from lattice.domain.node import Health, NodeHealth
from lattice.features.link.model import NodeReach
from lattice.wire.convert import message_of
from lattice.wire.v1 import link_pb2 as pb

_MOST_WORDS = 8
_LONGEST_WORDS = 160


def reach_message(answer: NodeReach) -> pb.NodeReach:
    """A measurement as it crosses the wire."""
    return message_of(answer, pb.NodeReach)


def health_message(health: NodeHealth) -> pb.NodeHealth:
    """How a node is, as it crosses the wire."""
    return message_of(health, pb.NodeHealth)


def health_of(message: pb.NodeHealth) -> NodeHealth:
    """What an agent said of its node, cut to what a record may hold."""
    try:
        health = Health(message.health)
    except ValueError:
        return NodeHealth()
    words = (inert(each)[:_LONGEST_WORDS] for each in message.words[:_MOST_WORDS])
    return NodeHealth(health, tuple(words))
