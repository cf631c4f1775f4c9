"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.compare.convert import comparison_message, query_of
from lattice.features.compare.service.comparing import CompareService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import compare_pb2 as pb
from lattice.wire.v1 import compare_pb2_grpc


class CompareRpc(compare_pb2_grpc.CompareServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: CompareService) -> None:
        self._service = service

    async def CompareMetrics(
        self, request: pb.CompareMetricsRequest, context: Any
    ) -> pb.Comparison:
        return comparison_message(await self._service.compare(grpc_caller(), query_of(request)))
