"""The feature over gRPC, for services. The guard has verified the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from lattice.features.watch.convert import query_of, record_message
from lattice.features.watch.service.watching import Watching
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import watch_pb2 as pb
from lattice.wire.v1 import watch_pb2_grpc


class WatchRpc(watch_pb2_grpc.WatchServiceServicer):
    """`WatchService`."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    async def StreamMetrics(
        self, request: pb.StreamMetricsRequest, context: Any
    ) -> AsyncIterator[pb.WatchRecord]:
        told = await self._watching.stream(grpc_caller(), request.id, query_of(request))
        async with aclosing(told):
            async for record, cursor in told:
                yield record_message(record, cursor)
