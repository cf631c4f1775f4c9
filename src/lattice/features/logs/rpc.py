"""The feature over gRPC: for agents on their own listener, and for people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lattice.base.errors import Unavailable, UsageError
from lattice.domain.logs import LogKind
from lattice.features.logs.convert import (
    kind_of,
    page_message,
    query_of,
    record_message,
    streams_message,
)
from lattice.features.logs.model import LogQuery
from lattice.features.logs.service.chunk_admission import ChunkPlaces
from lattice.features.logs.service.intake import Admitted, LogIntake
from lattice.features.logs.service.reading import LogReading
from lattice.wire.guard import grpc_caller
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1 import logs_pb2_grpc

_ARRIVE_S = 60.0
"""For the bytes of one chunk: 160 KiB a second at least."""


class LogIntakeRpc(logs_pb2_grpc.LogIntakeServicer):
    """`LogIntake`. The node is the one that its certificate names."""

    def __init__(
        self,
        intake: LogIntake,
        places: ChunkPlaces | None = None,
        *,
        arrive_s: float = _ARRIVE_S,
    ) -> None:
        self._intake = intake
        self._places = places or ChunkPlaces()
        self._arrive_s = arrive_s

    async def AdmitOutput(self, request: pb.AdmitOutputRequest, context: Any) -> pb.AdmittedOutput:
        admitted = await self._admitted(grpc_peer().name, request)
        return pb.AdmittedOutput(
            grant=admitted.grant,
            path=admitted.path,
            noted_since_ms=admitted.since_ms,
            noted_until_ms=admitted.until_ms,
            stored=[
                pb.StoredStream(
                    kind=each.kind.value,
                    source=each.source,
                    offset=each.index.end.offset,
                    line=each.index.end.line,
                    chunks=each.number,
                    last=each.index.last,
                )
                for each in admitted.stored
            ],
        )

    async def _admitted(self, node: str, request: pb.AdmitOutputRequest) -> Admitted:
        if request.HasField("noted"):
            return await self._intake.admit_noted(
                node,
                request.job_id,
                request.started,
                until=request.noted.until,
                skip=request.noted.skip,
                tell_stored=request.tell_stored,
            )
        return await self._intake.admit(
            node,
            request.job_id,
            request.started,
            tuple(request.pids),
            kind=kind_of(request.kind or LogKind.STDOUT.value),
            tell_stored=request.tell_stored,
        )

    async def StoreChunk(
        self, request: AsyncIterator[pb.ChunkPart], context: Any
    ) -> pb.StoredChunk:
        node, parts = grpc_peer().name, aiter(request)
        async with self._places.stream(node):
            async with self._in_time():
                first = await anext(parts, None)
            if first is None or not first.HasField("head"):
                raise UsageError("A chunk begins with its head.")
            head = first.head
            about = (head.job_id, head.started, head.kind, head.source, head.number)
            await self._intake.expect(node, *about, head.size_bytes)
            async with self._places.memory():
                async with self._in_time():
                    content = await _received(first.body, parts, head.size_bytes)
                number = await self._intake.store(node, *about, content)
        return pb.StoredChunk(number=number)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """What does not come must not keep the room of others."""
        try:
            async with asyncio.timeout(self._arrive_s):
                yield
        except TimeoutError:
            text = f"The chunk did not arrive within {self._arrive_s:g} s."
            raise Unavailable(text, hint="Send it again.") from None

    async def ListNodeJobs(self, request: pb.ListNodeJobsRequest, context: Any) -> pb.NodeJobList:
        found = await self._intake.past_jobs(grpc_peer().name, request.since)
        return pb.NodeJobList(
            jobs=[
                pb.EndedJob(
                    job_id=each.allocation.job_id,
                    started=each.attempt.started.timestamp(),
                    ended=each.attempt.ended.timestamp() if each.attempt.ended else 0.0,
                )
                for each in found.attempts
                if each.attempt.started is not None
            ],
            incomplete=not found.complete,
        )


async def _received(first: bytes, parts: AsyncIterator[pb.ChunkPart], size_bytes: int) -> bytes:
    # One buffer: a list would grow with the number of parts, which the sender chooses.
    content = bytearray(first)
    async for part in parts:
        content += part.body
        if len(content) > size_bytes:
            break
    if len(content) != size_bytes:
        raise UsageError("The chunk is not as large as its head says.")
    return bytes(content)


class LogRpc(logs_pb2_grpc.LogServiceServicer):
    """`LogService`, for services. The guard has verified the caller."""

    def __init__(self, reading: LogReading) -> None:
        self._reading = reading

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> pb.LogPage:
        return page_message(await self._reading.page(grpc_caller(), request.id, query_of(request)))

    async def StreamLogs(
        self, request: pb.ReadLogsRequest, context: Any
    ) -> AsyncIterator[pb.LogRecord]:
        told = await self._reading.stream(grpc_caller(), request.id, query_of(request))
        async for record, cursor in told:
            yield record_message(record, cursor)

    async def ListLogStreams(
        self, request: pb.ListLogStreamsRequest, context: Any
    ) -> pb.LogStreams:
        query = LogQuery(attempt=request.attempt)
        return streams_message(await self._reading.streams(grpc_caller(), request.id, query))

    async def ReadRawLog(
        self, request: pb.ReadRawLogRequest, context: Any
    ) -> AsyncIterator[pb.RawLog]:
        query = LogQuery(
            attempt=request.attempt,
            nodes=(request.node,),
            streams=(kind_of(request.stream or LogKind.STDOUT.value),),
            offset=request.offset,
        )
        end, text = await self._reading.raw(
            grpc_caller(), request.id, query, request.source or "batch"
        )
        yield pb.RawLog(end_offset=end)
        async for part in text:
            yield pb.RawLog(text=part)
