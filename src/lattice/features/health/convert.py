"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.health.model import Health
from lattice.wire.convert import message_of
from lattice.wire.v1 import health_pb2 as pb


def health_message(answer: Health) -> pb.Health:
    """The health as it crosses the wire."""
    return message_of(answer, pb.Health)
