"""The feature over REST. The route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from lattice.access.actor import Actor
from lattice.features.compare.model import Align, CompareQuery, Comparison, metrics_named
from lattice.features.compare.service.comparing import CompareService
from lattice.wire.guard import GuardedRoutes

_encoder = msgspec.json.Encoder()
_LONGEST = 2000


def offer(routes: GuardedRoutes[Actor], service: CompareService) -> None:
    """Put the feature's route among the server's."""

    @routes.get(
        "/compare",
        rpc="lattice.v1.CompareService/CompareMetrics",
        response_model=Comparison,
    )
    async def compare_metrics(
        request: Request,
        ids: Annotated[str, Query(max_length=_LONGEST)],
        metrics: Annotated[str, Query(max_length=_LONGEST)] = "",
        align: Align = Align.RELATIVE,
    ) -> Response:
        query = CompareQuery(
            ids=tuple(each.strip() for each in ids.split(",") if each.strip()),
            metrics=metrics_named((metrics,)),
            align=align,
        )
        answer = await service.compare(routes.caller(request), query)
        # Thousands of points: what describes the answer would take longer than the reckoning.
        return Response(_encoder.encode(answer), media_type="application/json")
