"""The feature over REST. Every route names its rpc and inherits its permission."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from fastapi import Path, Query, Request
from starlette.responses import Response

from lattice.access.actor import Actor
from lattice.base.errors import UsageError
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.diag.model import Area, Diagnosis, DiagQuery, StackPicture
from lattice.features.diag.service.diagnosing import DiagService
from lattice.wire.guard import GuardedRoutes

_RPC = "lattice.v1.DiagnosticsService/GetDiagnostics"
_PAGES = (Area.NETWORK, Area.STORAGE, Area.GPU)
_encoder = msgspec.json.Encoder()
_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]


def offer(routes: GuardedRoutes[Actor], service: DiagService) -> None:
    """Put the feature's routes among the server's."""

    async def told(request: Request, id_: str, areas: tuple[Area, ...]) -> Response:
        query = DiagQuery(areas=areas)
        diagnosis = await service.diagnose(routes.caller(request), id_, query)
        # Thousands of subjects: what describes the answer would take longer than to find it.
        return Response(_encoder.encode(diagnosis), media_type="application/json")

    @routes.get("/allocations/{id}/diagnostics", rpc=_RPC, response_model=Diagnosis)
    async def get_diagnostics(
        request: Request, id: _Id, areas: Annotated[str, Query(max_length=100)] = ""
    ) -> Response:
        return await told(request, id, _areas(areas))

    def page(area: Area) -> Callable[[Request, str], Awaitable[Response]]:
        async def get_page(request: Request, id: _Id) -> Response:
            return await told(request, id, (area,))

        get_page.__name__ = f"get_{area.value}_diagnostics"
        return get_page

    for area in _PAGES:
        routes.get(
            f"/allocations/{{id}}/diagnostics/{area.value}",
            rpc=_RPC,
            response_model=Diagnosis,
            operation_id=f"Get{area.value.capitalize()}Diagnostics",
        )(page(area))

    @routes.get(
        "/allocations/{id}/stacks",
        rpc="lattice.v1.DiagnosticsService/GetStacks",
        response_model=StackPicture,
    )
    async def get_stacks(request: Request, id: _Id) -> Response:
        picture = await service.stacks(routes.caller(request), id)
        return Response(_encoder.encode(picture), media_type="application/json")


def _areas(text: str) -> tuple[Area, ...]:
    try:
        return tuple(dict.fromkeys(Area(each) for each in text.split(",") if each))
    except ValueError:
        words = ", ".join(each.value for each in Area)
        raise UsageError("That is no area.", hint=f"There are {words}.") from None
