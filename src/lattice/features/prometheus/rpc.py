"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

import msgspec

from lattice.features.prometheus.convert import question_of
from lattice.features.prometheus.service.asking import Answer, PrometheusService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import prometheus_pb2 as pb
from lattice.wire.v1 import prometheus_pb2_grpc


class PrometheusRpc(prometheus_pb2_grpc.PrometheusServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: PrometheusService) -> None:
        self._service = service

    async def QueryInstant(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.query(grpc_caller(), question_of(request)))

    async def QueryRange(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.query_range(grpc_caller(), question_of(request)))

    async def ListSeries(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.series(grpc_caller(), question_of(request)))

    async def ListLabels(self, request: pb.PrometheusRequest, context: Any) -> pb.PrometheusReply:
        return _reply(await self._service.labels(grpc_caller(), question_of(request)))

    async def ListLabelValues(
        self, request: pb.PrometheusRequest, context: Any
    ) -> pb.PrometheusReply:
        return _reply(await self._service.label_values(grpc_caller(), question_of(request)))


def _reply(answer: Answer) -> pb.PrometheusReply:
    return pb.PrometheusReply(json=msgspec.json.encode(answer).decode())
