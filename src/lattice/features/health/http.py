"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from fastapi import Response

from lattice.access.actor import Actor
from lattice.features.health.model import Health
from lattice.features.health.service import HealthService
from lattice.wire.guard import GuardedRoutes

_JSON = "application/json"
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def offer(routes: GuardedRoutes[Actor], service: HealthService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.HealthService/"

    # Public, so a stranger may ask without end: written without a model in between.
    @routes.get("/healthz", rpc=rpc + "GetHealth", bare=True, response_model=Health)
    async def health() -> Response:
        return Response(_written(await service.health()), media_type=_JSON)

    @routes.get("/metrics", rpc=rpc + "GetMetrics", bare=True, response_class=Response)
    async def metrics() -> Response:
        return Response(await service.figures(), media_type=_PROMETHEUS_TEXT)

    @routes.get("/openapi.json", rpc=rpc + "GetApiDescription", include_in_schema=False)
    async def description() -> Response:
        return Response(_encoded(await service.description()), media_type=_JSON)


@lru_cache(maxsize=8)
def _written(health: Health) -> bytes:
    return msgspec.json.encode(health)


@lru_cache(maxsize=1)
def _encoded(text: str) -> bytes:
    return text.encode()
