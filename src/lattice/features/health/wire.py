"""What is no plain operation, over REST and gRPC: texts, and readiness with its two statuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

import grpc
import msgspec
from fastapi import Response

from lattice.access.actor import Actor
from lattice.features.health.model import Readiness
from lattice.wire.convert import message_of
from lattice.wire.guard import GuardedRoutes
from lattice.wire.v1 import health_pb2 as pb

_SERVICE = "lattice.v1.HealthService"
_JSON = "application/json"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

Figures = Callable[[], str]
"""Returns the server's own metrics in the Prometheus text format."""
Description = Callable[[], Awaitable[str]]
"""Returns the OpenAPI description of the REST interface, as JSON."""
Ready = Callable[[], Awaitable[Readiness]]
_UNREADY = {503: {"model": Readiness, "description": "it can't serve; `engines` has the reasons"}}


def handlers(
    figures: Figures, description: Description, ready: Ready
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handlers of the methods that are no operations."""

    async def get_metrics(_: pb.GetMetricsRequest, context: Any) -> pb.Metrics:  # noqa: ARG001
        return pb.Metrics(text=figures())

    async def get_description(
        _: pb.GetApiDescriptionRequest,
        context: Any,  # noqa: ARG001
    ) -> pb.ApiDescription:
        return pb.ApiDescription(json=await description())

    async def get_readiness(_: pb.GetReadinessRequest, context: Any) -> pb.Readiness:  # noqa: ARG001
        return message_of(await ready(), pb.Readiness)

    return grpc.method_handlers_generic_handler(
        _SERVICE,
        {
            "GetReadiness": grpc.unary_unary_rpc_method_handler(
                get_readiness,
                request_deserializer=pb.GetReadinessRequest.FromString,
                response_serializer=pb.Readiness.SerializeToString,
            ),
            "GetMetrics": grpc.unary_unary_rpc_method_handler(
                get_metrics,
                request_deserializer=pb.GetMetricsRequest.FromString,
                response_serializer=pb.Metrics.SerializeToString,
            ),
            "GetApiDescription": grpc.unary_unary_rpc_method_handler(
                get_description,
                request_deserializer=pb.GetApiDescriptionRequest.FromString,
                response_serializer=pb.ApiDescription.SerializeToString,
            ),
        },
    )


def offer(
    routes: GuardedRoutes[Actor], figures: Figures, description: Description, ready: Ready
) -> None:
    """Register the routes that are no operations."""

    @routes.get(
        "/readyz",
        rpc=f"{_SERVICE}/GetReadiness",
        bare=True,
        answer=Readiness,
        operation_id="GetReadiness",
        responses=_UNREADY,
    )
    async def readiness() -> Response:
        found = await ready()
        status = 200 if found.ready else 503
        return Response(msgspec.json.encode(found), status, media_type=_JSON)

    @routes.get("/metrics", rpc=f"{_SERVICE}/GetMetrics", bare=True, response_class=Response)
    async def metrics() -> Response:
        return Response(figures(), media_type=_PROMETHEUS_TEXT)

    @routes.get("/openapi.json", rpc=f"{_SERVICE}/GetApiDescription", include_in_schema=False)
    async def api_description() -> Response:
        return Response(_encoded(await description()), media_type=_JSON)


@lru_cache(maxsize=1)
def _encoded(text: str) -> bytes:
    return text.encode()
