"""The feature over REST. The route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Path, Query, Request
from starlette.responses import Response

from lattice.access.actor import Actor
from lattice.base.moment import parse_duration
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.top.model import TopAnswer, TopMode, TopQuery
from lattice.features.top.service.looking import TopService
from lattice.wire.guard import GuardedRoutes

_encoder = msgspec.json.Encoder()


def offer(routes: GuardedRoutes[Actor], service: TopService) -> None:
    """Put the feature's route among the server's."""

    @routes.get(
        "/allocations/{id}/metrics",
        rpc="lattice.v1.MetricService/QueryMetrics",
        response_model=TopAnswer,
    )
    async def query_metrics(
        request: Request,
        id: Annotated[str, Path(pattern=REFERENCE_PATTERN)],
        mode: TopMode = TopMode.SUMMARY,
        duration: Annotated[str, Query(max_length=32)] = "",
        attempt: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        history: bool = False,
        explain: bool = False,
    ) -> Response:
        query = TopQuery(
            mode=mode,
            duration_s=parse_duration(duration) if duration else None,
            attempt=attempt,
            history=history,
            explain=explain,
        )
        answer = await service.look(routes.caller(request), id, query)
        # Thousands of cells: what describes the answer would take longer than the metric store.
        return Response(_encoder.encode(answer), media_type="application/json")
