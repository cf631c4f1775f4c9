"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.health.convert import health_message
from lattice.features.health.service import HealthService
from lattice.wire.v1 import health_pb2 as pb
from lattice.wire.v1 import health_pb2_grpc


class HealthRpc(health_pb2_grpc.HealthServiceServicer):
    """Thin."""

    def __init__(self, service: HealthService) -> None:
        self._service = service

    async def GetHealth(self, request: pb.GetHealthRequest, context: Any) -> pb.Health:
        return health_message(await self._service.health())

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.Metrics:
        return pb.Metrics(text=await self._service.figures())

    async def GetApiDescription(
        self, request: pb.GetApiDescriptionRequest, context: Any
    ) -> pb.ApiDescription:
        return pb.ApiDescription(json=await self._service.description())
