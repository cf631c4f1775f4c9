"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogPage, LogQuery, LogStreams
from lattice.features.logs.service.reading import LARGEST_PAGE, LogReading
from lattice.wire.disconnect import while_connected
from lattice.wire.events import DESCRIPTION, EventStream
from lattice.wire.guard import GuardedRoutes

_ENCODER = msgspec.json.Encoder()
_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]
_Attempt = Annotated[int, Query(ge=0, le=1_000_000)]
_Stream = Annotated[list[LogKind], Query(max_length=2)]
_Nodes = Annotated[list[str], Query(alias="node", max_length=10_000)]
_Ranks = Annotated[list[int], Query(alias="rank", max_length=10_000)]
_Tail = Annotated[int | None, Query(ge=0, le=1_000_000)]
_Text = Annotated[str, Query(max_length=500)]
_Cursor = Annotated[str, Query(max_length=512 * 1024)]
_Offset = Annotated[int | None, Query(ge=0, lt=1 << 53)]


def _asked(  # noqa: PLR0913, PLR0917 - one for each parameter of the address
    request: Request,
    attempt: _Attempt = 0,
    stream: _Stream = [],
    nodes: _Nodes = [],
    ranks: _Ranks = [],
    since: datetime | None = None,
    until: datetime | None = None,
    tail: _Tail = None,
    grep: _Text = "",
    exclude: _Text = "",
    offset: _Offset = None,
    cursor: _Cursor = "",
) -> LogQuery:
    return LogQuery(
        attempt=attempt,
        streams=tuple(stream),
        nodes=tuple(nodes),
        ranks=tuple(ranks),
        since=_aware(since),
        until=_aware(until),
        tail=tail,
        grep=grep,
        exclude=exclude,
        offset=offset,
        # A browser that comes back says by itself where it was.
        cursor=cursor or request.headers.get("last-event-id", ""),
    )


_Query = Annotated[LogQuery, Depends(_asked)]


def offer(routes: GuardedRoutes[Actor], service: LogReading) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.LogService/"

    @routes.get("/allocations/{id}/logs", rpc=rpc + "ReadLogs", response_model=LogPage)
    async def read_logs(
        request: Request,
        id: _Id,
        query: _Query,
        limit: Annotated[int, Query(ge=0, le=LARGEST_PAGE)] = 0,
    ) -> Response:
        asked = service.page(routes.caller(request), id, replace(query, limit=limit))
        page = await while_connected(request, asked)
        return Response(_ENCODER.encode(page), media_type="application/json")

    @routes.get(
        "/allocations/{id}/logs/stream",
        rpc=rpc + "StreamLogs",
        response_class=EventStream,
        response_model=None,
        status_code=200,
        responses={200: DESCRIPTION},
    )
    async def stream_logs(
        request: Request, id: _Id, query: _Query, follow: bool = False
    ) -> Response:
        records = await service.stream(routes.caller(request), id, replace(query, follow=follow))
        return EventStream(
            records,
            request.state.request_id,
            lambda: routes.recheck(request),
            lambda error: routes.defect(request, error),
            routes.next_change,
        )

    @routes.get(
        "/allocations/{id}/logs/streams", rpc=rpc + "ListLogStreams", response_model=LogStreams
    )
    async def list_log_streams(request: Request, id: _Id, attempt: _Attempt = 0) -> LogStreams:
        asked = service.streams(routes.caller(request), id, LogQuery(attempt=attempt))
        return await while_connected(request, asked)

    @routes.get(
        "/allocations/{id}/logs/raw",
        rpc=rpc + "ReadRawLog",
        response_class=StreamingResponse,
        response_model=None,
    )
    async def read_raw_log(
        request: Request,
        id: _Id,
        node: Annotated[str, Query(min_length=1, max_length=255)],
        source: Annotated[str, Query(max_length=64)] = "batch",
        stream: LogKind = LogKind.STDOUT,
        attempt: _Attempt = 0,
        offset: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    ) -> Response:
        query = LogQuery(attempt=attempt, nodes=(node,), streams=(stream,), offset=offset)
        end, text = await service.raw(routes.caller(request), id, query, source)
        headers = {"lattice-end-offset": str(end), "cache-control": "no-store"}
        return StreamingResponse(_bytes(text), 200, headers, "application/octet-stream")


async def _bytes(text: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for each in text:
        yield each


def _aware(moment: datetime | None) -> datetime | None:
    # A time without a zone is taken as UTC, as everywhere in the interface.
    return moment.replace(tzinfo=moment.tzinfo or UTC) if moment is not None else None
