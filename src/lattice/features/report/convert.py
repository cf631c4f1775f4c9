"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.report.model import Report
from lattice.wire.convert import message_of
from lattice.wire.v1 import report_pb2 as pb


def report_message(answer: Report) -> pb.Report:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.Report)
