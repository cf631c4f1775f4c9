"""The port `Intake`, by the replica that this node is linked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from grpc import aio

from lattice.base.errors import DataUnavailable, Unavailable
from lattice.domain.logs import LogKind, LogSource
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.intake import OutputAdmission, PastJob, PastJobs
from lattice.features.logs.node.spool import StoredChunk
from lattice.wire.status import error_of
from lattice.wire.v1 import link_pb2
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1.logs_pb2_grpc import LogIntakeStub

_ASK_S = 15.0
_STORE_S = 120.0
_T = TypeVar("_T")


class LinkedIntake:
    """Calls the linked replica; `address` returns "" while there is none.

    Times of the node are converted to the servers' time, and times of the servers to the node's.
    """

    def __init__(self, dialling: Dialling, address: Callable[[], str], servers: ServerTime) -> None:
        self._dialling = dialling
        self._address = address
        self._servers = servers

    async def admit(
        self,
        job_id: int,
        started: float,
        pids: Sequence[int],
        *,
        kind: LogKind = LogKind.STDOUT,
        tell_stored: bool = False,
    ) -> OutputAdmission:
        request = pb.AdmitOutputRequest(
            job_id=job_id,
            started=self._servers.told(started),
            pids=pids,
            kind=kind.value,
            tell_stored=tell_stored,
        )
        return await self._admission(request)

    async def admit_noted(
        self,
        job_id: int,
        started: float,
        *,
        until: float = 0.0,
        skip: int = 0,
        tell_stored: bool = False,
    ) -> OutputAdmission:
        until = self._servers.told(until) if until > 0 else until
        noted = pb.NotedOutput(until=until, skip=skip)
        admission = await self._admission(
            pb.AdmitOutputRequest(
                job_id=job_id,
                started=self._servers.told(started),
                noted=noted,
                tell_stored=tell_stored,
            )
        )
        if not admission.since_ms:
            raise DataUnavailable("This server is older than the node and knows of no notes.")
        return admission

    async def _admission(self, request: pb.AdmitOutputRequest) -> OutputAdmission:
        answer: pb.AdmittedOutput = await self._ask(
            lambda stub: stub.AdmitOutput(request, timeout=_ASK_S)
        )
        stored = {
            (LogKind(each.kind), LogSource.parse(each.source)): StoredChunk(
                each.chunks, each.offset, each.line, each.last
            )
            for each in answer.stored
        }
        return OutputAdmission(
            answer.grant, answer.path, stored, answer.noted_since_ms, answer.noted_until_ms
        )

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        answer: pb.StoredChunk = await self._ask(
            lambda stub: stub.StoreChunk(self._told(parts), timeout=_STORE_S)
        )
        return answer.number

    async def _told(self, parts: AsyncIterator[pb.ChunkPart]) -> AsyncIterator[pb.ChunkPart]:
        async for part in parts:
            if part.HasField("head"):
                part.head.started = self._servers.told(part.head.started)
            yield part

    async def past_jobs(self, since: float) -> PastJobs:
        ahead_s = self._servers.ahead_s or 0.0
        request = pb.ListNodeJobsRequest(since=since - ahead_s)
        answer: pb.NodeJobList = await self._ask(
            lambda stub: stub.ListNodeJobs(request, timeout=_ASK_S)
        )
        here = self._servers.here
        jobs = tuple(
            PastJob(each.job_id, here(each.started), here(each.ended)) for each in answer.jobs
        )
        return PastJobs(jobs, complete=not answer.incomplete)

    async def _ask(self, call: Callable[[Any], Awaitable[_T]]) -> _T:
        address = self._address()
        if not address:
            raise Unavailable("This node is not linked to any server.", hint="It dials again.")
        async with self._dialling.lane(address, link_pb2.BULK) as channel:
            try:
                return await call(LogIntakeStub(channel))
            except aio.AioRpcError as error:
                if error.code().name == "UNAVAILABLE":
                    self._dialling.give_up(address, link_pb2.BULK)
                raise error_of(address, error) from None
