"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.sharing.model import AllocationSharing
from lattice.wire.convert import message_of
from lattice.wire.v1 import sharing_pb2 as pb


def sharing_message(answer: AllocationSharing) -> pb.AllocationSharing:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.AllocationSharing)
