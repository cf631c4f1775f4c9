"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.attach.model import AttachSessions, AttachTicket
from lattice.wire.convert import message_of
from lattice.wire.v1 import attach_pb2 as pb


def sessions_message(answer: AttachSessions) -> pb.AttachSessions:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.AttachSessions)


def ticket_message(answer: AttachTicket) -> pb.AttachTicket:
    """The same of a ticket."""
    return message_of(answer, pb.AttachTicket)
