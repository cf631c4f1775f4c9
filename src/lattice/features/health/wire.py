"""The texts of the feature over REST and gRPC: metrics and API description."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import grpc
from fastapi import Response

from lattice.access.actor import Actor
from lattice.features.health.service import HealthService
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1 import health_pb2 as pb


class HealthRpc:
    """The methods of `HealthService` that return a text."""

    def __init__(self, service: HealthService) -> None:
        self._service = service

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handlers to add to a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "lattice.v1.HealthService",
            {
                "GetMetrics": grpc.unary_unary_rpc_method_handler(
                    self.metrics,
                    request_deserializer=pb.GetMetricsRequest.FromString,
                    response_serializer=pb.Metrics.SerializeToString,
                ),
                "GetApiDescription": grpc.unary_unary_rpc_method_handler(
                    self.description,
                    request_deserializer=pb.GetApiDescriptionRequest.FromString,
                    response_serializer=pb.ApiDescription.SerializeToString,
                ),
            },
        )

    async def metrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.Metrics:
        return pb.Metrics(text=await self._service.figures())

    async def description(
        self, request: pb.GetApiDescriptionRequest, context: Any
    ) -> pb.ApiDescription:
        return pb.ApiDescription(json=await self._service.description())


_JSON = "application/json"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def offer(routes: GuardedRoutes[Actor], service: HealthService) -> None:
    """Register the routes that return a text."""
    rpc = "lattice.v1.HealthService/"

    @routes.get("/metrics", rpc=rpc + "GetMetrics", bare=True, response_class=Response)
    async def metrics() -> Response:
        return Response(await service.figures(), media_type=_PROMETHEUS_TEXT)

    @routes.get("/openapi.json", rpc=rpc + "GetApiDescription", include_in_schema=False)
    async def description() -> Response:
        return Response(_encoded(await service.description()), media_type=_JSON)


@lru_cache(maxsize=1)
def _encoded(text: str) -> bytes:
    return text.encode()
