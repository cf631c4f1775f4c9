"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.base.errors import UsageError
from lattice.features.top.model import TopAnswer, TopMode, TopQuery
from lattice.wire.convert import message_of
from lattice.wire.v1 import top_pb2 as pb


def query_of(request: pb.QueryMetricsRequest) -> TopQuery:
    """Raises `UsageError`."""
    try:
        mode = TopMode(request.mode or TopMode.SUMMARY.value)
    except ValueError:
        raise UsageError("A mode is summary, per_node, per_gpu or wide.") from None
    return TopQuery(
        mode=mode,
        duration_s=request.duration_s or None,
        attempt=request.attempt,
        history=request.history,
        explain=request.explain,
    )


def answer_message(answer: TopAnswer) -> pb.TopAnswer:
    """A look as it crosses the wire."""
    return message_of(answer, pb.TopAnswer)
