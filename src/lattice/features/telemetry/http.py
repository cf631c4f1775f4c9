"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.telemetry.model import Telemetry, TelemetryOrder
from lattice.features.telemetry.service.switching import TelemetrySwitching
from lattice.wire.guard import GuardedRoutes

_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]


def offer(routes: GuardedRoutes[Actor], service: TelemetrySwitching) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.TelemetryService/"

    @routes.get("/allocations/{id}/telemetry", rpc=rpc + "GetTelemetry", response_model=Telemetry)
    async def get_telemetry(request: Request, id: _Id) -> Telemetry:
        return await service.telemetry(routes.caller(request), id)

    @routes.change(
        "PUT",
        "/allocations/{id}/telemetry",
        rpc=rpc + "SetTelemetry",
        body=TelemetryOrder,
        response_model=Telemetry,
    )
    async def set_telemetry(request: Request, id: _Id) -> Telemetry:
        order = await routes.body(request, TelemetryOrder)
        return await service.switch(routes.caller(request), id, order)
