"""The bytes of a log over REST and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import grpc
from fastapi import Path, Query, Request
from starlette.responses import Response, StreamingResponse

from lattice.access.actor import Actor
from lattice.base.choices import one_of
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogQuery
from lattice.features.logs.service.log_service import LogService
from lattice.wire.guard import GuardedRoutes, grpc_caller
from lattice.wire.v1 import logs_pb2 as pb


def offer(routes: GuardedRoutes[Actor], service: LogService) -> None:
    """Add the route."""

    @routes.get(
        "/allocations/{id}/logs/raw",
        rpc="lattice.v1.LogService/ReadRawLog",
        response_class=StreamingResponse,
    )
    async def read_raw_log(
        request: Request,
        id: Annotated[str, Path(pattern=REFERENCE_PATTERN)],
        node: Annotated[str, Query(min_length=1, max_length=255)],
        source: Annotated[str, Query(max_length=64)] = "batch",
        stream: LogKind = LogKind.STDOUT,
        attempt: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        offset: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    ) -> Response:
        query = LogQuery(attempt=attempt, nodes=(node,), stream=(stream,), offset=offset)
        end, text = await service.raw(routes.caller(request), id, query, source)
        headers = {"lattice-end-offset": str(end), "cache-control": "no-store"}
        return StreamingResponse(text, 200, headers, "application/octet-stream")


class RawLogRpc:
    """`ReadRawLog` on the people's listener. The guard has verified the caller."""

    def __init__(self, reading: LogService) -> None:
        self._reading = reading

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The handlers to add to a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "lattice.v1.LogService",
            {
                "ReadRawLog": grpc.unary_stream_rpc_method_handler(
                    self.read,
                    request_deserializer=pb.ReadRawLogRequest.FromString,
                    response_serializer=pb.RawLog.SerializeToString,
                )
            },
        )

    async def read(self, request: pb.ReadRawLogRequest, context: Any) -> AsyncIterator[pb.RawLog]:
        query = LogQuery(
            attempt=request.attempt,
            nodes=(request.node,),
            stream=(one_of(LogKind, request.stream or LogKind.STDOUT),),
            offset=request.offset,
        )
        end, text = await self._reading.raw(
            grpc_caller(), request.id, query, request.source or "batch"
        )
        yield pb.RawLog(end_offset=end)
        async for part in text:
            yield pb.RawLog(text=part)
