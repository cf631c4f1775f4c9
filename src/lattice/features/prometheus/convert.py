"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.features.prometheus.model import PrometheusQuestion
from lattice.wire.v1 import prometheus_pb2 as pb


def question_of(request: pb.PrometheusRequest) -> PrometheusQuestion:
    """The parameters as they came."""
    return PrometheusQuestion(
        query=request.query,
        time=request.time,
        start=request.start,
        end=request.end,
        step=request.step,
        match=tuple(request.match),
        name=request.name,
    )
