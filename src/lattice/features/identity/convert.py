"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.identity.model import AuthDiscovery, Identity
from lattice.wire.convert import message_of
from lattice.wire.v1 import identity_pb2 as pb


def discovery_message(answer: AuthDiscovery) -> pb.AuthDiscovery:
    """The discovery as it crosses the wire."""
    return message_of(answer, pb.AuthDiscovery)


def identity_message(answer: Identity) -> pb.Identity:
    """The identity as it crosses the wire."""
    return message_of(answer, pb.Identity)
