"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.base.errors import UsageError
from lattice.features.compare.model import Align, CompareQuery, Comparison, metrics_named
from lattice.wire.convert import message_of
from lattice.wire.v1 import compare_pb2 as pb


def query_of(request: pb.CompareMetricsRequest) -> CompareQuery:
    """Raises `UsageError`."""
    try:
        align = Align(request.align or Align.RELATIVE.value)
    except ValueError:
        raise UsageError("Runs are aligned `relative`: each from its own start.") from None
    return CompareQuery(
        ids=tuple(request.ids), metrics=metrics_named(tuple(request.metrics)), align=align
    )


def comparison_message(answer: Comparison) -> pb.Comparison:
    """An answer as it crosses the wire."""
    return message_of(answer, pb.Comparison)
