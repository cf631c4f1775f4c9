"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.link.model import NodeReach
from lattice.wire.convert import message_of
from lattice.wire.v1 import link_pb2 as pb


def reach_message(answer: NodeReach) -> pb.NodeReach:
    """A measurement as it crosses the wire."""
    return message_of(answer, pb.NodeReach)
