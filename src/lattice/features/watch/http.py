"""The feature over REST, as events. The route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.measured import Shown
from lattice.features.watch.model import WatchQuery
from lattice.features.watch.service.watching import Watching
from lattice.wire.events import DESCRIPTION, EventStream
from lattice.wire.guard import GuardedRoutes

_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]
_Metrics = Annotated[list[Shown], Query(max_length=len(Shown))]
_Cursor = Annotated[str, Query(max_length=16 * 1024)]


def offer(routes: GuardedRoutes[Actor], watching: Watching) -> None:
    """Put the feature's route among the server's."""

    @routes.get(
        "/allocations/{id}/watch",
        rpc="lattice.v1.WatchService/StreamMetrics",
        response_class=EventStream,
        response_model=None,
        status_code=200,
        responses={200: DESCRIPTION},
    )
    async def stream_metrics(
        request: Request,
        id: _Id,
        metrics: _Metrics = [],
        alerts_only: bool = False,
        cursor: _Cursor = "",
    ) -> Response:
        query = WatchQuery(
            metrics=tuple(dict.fromkeys(metrics)),
            alerts_only=alerts_only,
            # A browser that comes back says by itself what it knows.
            cursor=cursor or request.headers.get("last-event-id", ""),
        )
        records = await watching.stream(routes.caller(request), id, query)
        return EventStream(
            records,
            request.state.request_id,
            lambda: routes.recheck(request),
            lambda error: routes.defect(request, error),
            routes.next_change,
        )
