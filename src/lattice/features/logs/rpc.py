"""The intake over gRPC, on the agents' listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lattice.base.choices import one_of
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.job_seal import JobSeal
from lattice.domain.logs import LogKind
from lattice.features.logs.service.chunk_admission import ChunkSlots
from lattice.features.logs.service.intake import Admitted, LogIntake
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1 import logs_pb2_grpc

_ARRIVE_S = 60.0
"""The limit for one chunk's bytes: at least 160 KiB a second."""


class LogIntakeRpc(logs_pb2_grpc.LogIntakeServicer):
    """`LogIntake`. The certificate names the node."""

    def __init__(
        self,
        intake: LogIntake,
        slots: ChunkSlots | None = None,
        *,
        arrive_s: float = _ARRIVE_S,
    ) -> None:
        self._intake = intake
        self._slots = slots or ChunkSlots()
        self._arrive_s = arrive_s

    async def AdmitOutput(self, request: pb.AdmitOutputRequest, context: Any) -> pb.AdmittedOutput:
        admitted = await self._admitted(grpc_peer().name, request)
        return pb.AdmittedOutput(
            grant=admitted.grant,
            path=admitted.path,
            noted_since_ms=admitted.since_ms,
            noted_until_ms=admitted.until_ms,
            seal=_seal_message(admitted.seal),
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
                with_stored=request.tell_stored,
                can_seal=request.can_seal,
            )
        return await self._intake.admit(
            node,
            request.job_id,
            request.started,
            tuple(request.pids),
            kind=one_of(LogKind, request.kind or LogKind.STDOUT, "stream"),
            with_stored=request.tell_stored,
            can_seal=request.can_seal,
        )

    async def GetJobSeal(self, request: pb.GetJobSealRequest, context: Any) -> pb.JobSeal:
        seal = await self._intake.seal_of(grpc_peer().name, request.job_id, request.started)
        return _seal_message(seal)

    async def StoreChunk(
        self, request: AsyncIterator[pb.ChunkPart], context: Any
    ) -> pb.StoredChunk:
        node, parts = grpc_peer().name, aiter(request)
        async with self._slots.stream(node):
            async with self._in_time():
                first = await anext(parts, None)
            if first is None or not first.HasField("head"):
                raise UsageError("A chunk begins with its head.")
            head = first.head
            about = (head.job_id, head.started, head.kind, head.source, head.number)
            await self._intake.expect(node, *about, head.size_bytes)
            async with self._slots.memory:
                async with self._in_time():
                    content = await _received(first.body, parts, head.size_bytes)
                number = await self._intake.store(node, *about, content)
        return pb.StoredChunk(number=number)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raise `Unavailable` after `arrive_s`: a stalled sender must not hold memory."""
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


def _seal_message(seal: JobSeal | None) -> pb.JobSeal:
    if seal is None:
        return pb.JobSeal()
    return pb.JobSeal(
        key_id=seal.key.id,
        secret=seal.key.secret,
        cluster=seal.cluster,
        allocation=seal.allocation,
    )


async def _received(first: bytes, parts: AsyncIterator[pb.ChunkPart], size_bytes: int) -> bytes:
    # One buffer: the length of a list would depend on the sender's number of parts.
    content, end = bytearray(size_bytes), len(first)
    content[:end] = first
    async for part in parts:
        begin, end = end, end + len(part.body)
        if end > size_bytes:
            break
        content[begin:end] = part.body
    if end != size_bytes:
        raise UsageError("The chunk is not as large as its head says.")
    return bytes(content)
