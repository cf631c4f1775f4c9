"""Wires the feature: its service and its operation."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.domain.presence import slices_of
from lattice.features.watch.model import WatchEnd, WatchRecord
from lattice.features.watch.operations import STREAM_METRICS
from lattice.features.watch.service.watch import WatchSources
from lattice.features.watch.service.watches import WatchService
from lattice.foundation.foundation import Foundation, NodeAccess
from lattice.foundation.wiring import Wiring
from lattice.wire.convert import message_of
from lattice.wire.v1 import watch_pb2 as pb

_EXIT_CODE = "exit_code"


def record_message(record: WatchRecord, cursor: str = "") -> pb.WatchRecord:
    """Build a message with the cursor. The record's type is the name of its field."""
    message = pb.WatchRecord(cursor=cursor)
    part = getattr(message, record.type)
    part.CopyFrom(message_of(record, type(part), without=frozenset({"type", _EXIT_CODE})))
    if isinstance(record, WatchEnd) and record.exit_code is not None:
        part.exit_code = str(record.exit_code)
    return message


def bindings(service: WatchService) -> tuple[AnyBinding, ...]:
    return (
        STREAM_METRICS.to(
            lambda actor, asked: service.stream(actor, asked.id, asked), message=record_message
        ),
    )


def wire(foundation: Foundation, nodes: NodeAccess) -> Wiring:
    """Return the feature's part of the server. It owns nothing that outlives a stream."""
    sources = WatchSources(
        foundation.scheduler,
        nodes.looks,
        foundation.clock,
        nodes.modes,
        slices=lambda allocation: slices_of(allocation, foundation.presences.presences()),
    )
    return Wiring(
        bindings=bindings(WatchService(sources, foundation.measurements, foundation.limits))
    )
