"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.locks.model import LockList
from lattice.wire.convert import message_of
from lattice.wire.v1 import locks_pb2 as pb


def locks_message(answer: LockList) -> pb.LockList:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.LockList)
