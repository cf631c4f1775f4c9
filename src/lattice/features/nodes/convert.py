"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.nodes.model import NodeActs, NodeCard, NodeList
from lattice.wire.convert import message_of
from lattice.wire.v1 import nodes_pb2 as pb


def list_message(answer: NodeList) -> pb.NodeList:
    """A list as it crosses the wire."""
    return message_of(answer, pb.NodeList)


def card_message(answer: NodeCard) -> pb.NodeCard:
    """A card as it crosses the wire."""
    return message_of(answer, pb.NodeCard)


def acts_message(answer: NodeActs) -> pb.NodeActs:
    """What became of the nodes, as it crosses the wire."""
    return message_of(answer, pb.NodeActs)
