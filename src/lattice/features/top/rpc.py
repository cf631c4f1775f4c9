"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.top.convert import answer_message, query_of
from lattice.features.top.service.looking import TopService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import top_pb2 as pb
from lattice.wire.v1 import top_pb2_grpc


class MetricRpc(top_pb2_grpc.MetricServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: TopService) -> None:
        self._service = service

    async def QueryMetrics(self, request: pb.QueryMetricsRequest, context: Any) -> pb.TopAnswer:
        return answer_message(
            await self._service.look(grpc_caller(), request.id, query_of(request))
        )
