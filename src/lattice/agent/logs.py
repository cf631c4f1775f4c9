"""Builds the agent's part of logs: collecting, its budget, and shipping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.adapters.linux.proc import process_info
from lattice.agent.config import AgentSettings
from lattice.agent.fresh_start import FreshStart
from lattice.agent.scraped_jobs import ScrapedJobs
from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.job_seal import JobSeal
from lattice.domain.logs import LogKind, LogSource
from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.sealed import DataKey
from lattice.features.link.node.dialler import Dialling, Linked, bulk_channel, linked_calls
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.collector import Collecting
from lattice.features.logs.node.feed import LogFeed
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.logs.node.intake import OutputAdmission, PastJob, PastJobs
from lattice.features.logs.node.quota import NO_QUOTA, Budget
from lattice.features.logs.node.shipper import Shipping
from lattice.features.logs.node.spool import StoredChunk, StreamSpool
from lattice.features.logs.node.writers import ProcessInfo
from lattice.wire.v1 import logs_pb2 as pb
from lattice.wire.v1.logs_pb2_grpc import LogIntakeStub

_PROC = Path("/proc")
_ASK_S = 15.0
_STORE_S = 120.0
_T = TypeVar("_T")


class LogParts:
    """Follows the output of this node's jobs."""

    def __init__(
        self,
        settings: AgentSettings,
        jobs: NodeJobs,
        dialling: Dialling,
        link: Callable[[], Linked | None],
        clock: Clock,
        servers: ServerTime,
        helper: HelperChannel,
        fresh: FreshStart,
    ) -> None:
        """`link` returns the current link, or None."""
        config = settings.config
        folder = config.state_dir / "logs"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self.scraped = ScrapedJobs(
            config.state_dir / "sensitive-work", lambda: self.collecting.followed
        )
        intake = LinkedIntake(dialling, link, servers, fresh, self.scraped.note_sensitive_work)
        self.budget = Budget(folder, config.logs.spool_mb * 1024 * 1024, self._spools)
        self.collecting = Collecting(
            settings.node,
            folder,
            intake,
            HelperOutputs(helper),
            jobs,
            _read_process,
            clock,
            stamps=servers,
            room=self.budget.room,
            on_closed=self._chunk_closed,
            quota_bytes=config.logs.job_quota_mb * 1024 * 1024 or NO_QUOTA,
        )
        self.seals = NodeJobSeals(lambda: self.collecting.followed, intake)
        self.feed = LogFeed(
            lambda: self.collecting.followed,
            unread=self.collecting.unread,
            to_server_time=servers.to_server_time,
            ahead_s=lambda: servers.ahead_s,
        )
        self.shipping = Shipping(intake, self._spools, self.collecting.stored)

    def loops(self) -> tuple[Loop, ...]:
        return (
            # A reader that hangs on a dead share ends only with the process. A second one beside it
            # would write to the same spool.
            Loop("logs", self.collecting.run, OnFailure.END),
            Loop("logs missed", self.collecting.take_up_missed, OnFailure.RESTART),
            Loop("logs budget", self.budget.run, OnFailure.RESTART),
            Loop("logs shipping", self.shipping.run, OnFailure.RESTART),
        )

    def _chunk_closed(self) -> None:
        # Called in the thread of a capture.
        self._loop.call_soon_threadsafe(self.shipping.nudge)

    def _spools(self) -> tuple[StreamSpool, ...]:
        return tuple(self.collecting.spools())


class NodeJobSeals:
    """The port `JobSeals`: the seals of the jobs that are followed."""

    def __init__(
        self, followed: Callable[[], Iterable[FollowedFile]], intake: LinkedIntake
    ) -> None:
        self._followed = followed
        self._intake = intake

    def key_of(self, allocation: str) -> DataKey | None:
        for each in self._followed():
            if each.seal is not None and each.seal.allocation == allocation:
                return each.seal.key
        return None

    async def key_for(self, allocation: str, job_id: int, started: float) -> DataKey | None:
        """The same; a server is asked if it is not here. `started` is in the servers' time."""
        key = self.key_of(allocation)
        if key is not None:
            return key
        seal = await self._intake.seal_at(job_id, started)
        return seal.key if seal is not None and seal.allocation == allocation else None

    async def ask(self, job_id: int, started: float) -> JobSeal | None:
        for each in self._followed():
            identity = each.identity
            is_same = identity.job_id == job_id and abs(identity.started - started) < CLOCK_SLACK_S
            if is_same and each.seal is not None:
                return each.seal
        return await self._intake.seal_of(job_id, started)


class LinkedIntake:
    """Calls the linked replica; `link` returns None while there is none.

    Times of the node are converted to the servers' time, and times of the servers to the node's.
    """

    def __init__(
        self,
        dialling: Dialling,
        link: Callable[[], Linked | None],
        servers: ServerTime,
        fresh: FreshStart,
        on_sensitive_work: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_sensitive_work` is called when a server calls a job sensitive."""
        self._fresh = fresh
        self._on_sensitive_work = on_sensitive_work
        self._dialling = dialling
        self._link = link
        self._servers = servers

    async def admit(
        self,
        job_id: int,
        started: float,
        pids: Sequence[int],
        *,
        kind: LogKind = LogKind.STDOUT,
        with_stored: bool = False,
    ) -> OutputAdmission:
        request = pb.AdmitOutputRequest(
            job_id=job_id,
            started=self._servers.to_server_time(started),
            pids=pids,
            kind=kind.value,
            tell_stored=with_stored,
            can_seal=True,
        )
        return await self._admission(request)

    async def admit_noted(
        self,
        job_id: int,
        started: float,
        *,
        until: float = 0.0,
        skip: int = 0,
        with_stored: bool = False,
    ) -> OutputAdmission:
        until = self._servers.to_server_time(until) if until > 0 else until
        noted = pb.NotedOutput(until=until, skip=skip)
        admission = await self._admission(
            pb.AdmitOutputRequest(
                job_id=job_id,
                started=self._servers.to_server_time(started),
                noted=noted,
                tell_stored=with_stored,
                can_seal=True,
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
            answer.grant,
            answer.path,
            stored,
            answer.noted_since_ms,
            answer.noted_until_ms,
            self._seal_in(answer.seal),
        )

    async def seal_of(self, job_id: int, started: float) -> JobSeal | None:
        return await self.seal_at(job_id, self._servers.to_server_time(started))

    async def seal_at(self, job_id: int, started: float) -> JobSeal | None:
        """The same; `started` is in the servers' time."""
        request = pb.GetJobSealRequest(job_id=job_id, started=started)
        answer: pb.JobSeal = await self._ask(lambda stub: stub.GetJobSeal(request, timeout=_ASK_S))
        return self._seal_in(answer)

    def _seal_in(self, message: pb.JobSeal) -> JobSeal | None:
        """The seal, if there is one. Raises `Unavailable` where this process may hold no keys."""
        if not message.key_id:
            return None
        self._on_sensitive_work()
        if not self._fresh.may_hold_keys():
            reason = next(iter(self._fresh.lacks()), "the agent starts anew for sensitive work")
            raise Unavailable(f"Nothing of this job is collected yet: {reason}.")
        key = DataKey(message.key_id, message.secret)
        return JobSeal(key, message.cluster, message.allocation)

    async def store(self, parts: AsyncIterator[pb.ChunkPart]) -> int:
        async with bulk_channel(self._dialling, self._link()) as channel:
            stub: Any = LogIntakeStub(channel)
            sent = self._in_server_time(parts)
            answer: pb.StoredChunk = await stub.StoreChunk(sent, timeout=_STORE_S)
        return answer.number

    async def _in_server_time(
        self, parts: AsyncIterator[pb.ChunkPart]
    ) -> AsyncIterator[pb.ChunkPart]:
        async for part in parts:
            if part.HasField("head"):
                part.head.started = self._servers.to_server_time(part.head.started)
            yield part

    async def past_jobs(self, since: float) -> PastJobs:
        ahead_s = self._servers.ahead_s or 0.0
        request = pb.ListNodeJobsRequest(since=since - ahead_s)
        answer: pb.NodeJobList = await self._ask(
            lambda stub: stub.ListNodeJobs(request, timeout=_ASK_S)
        )
        to_node_time = self._servers.to_node_time
        jobs = tuple(
            PastJob(each.job_id, to_node_time(each.started), to_node_time(each.ended))
            for each in answer.jobs
        )
        return PastJobs(jobs, complete=not answer.incomplete)

    async def _ask(self, call: Callable[[Any], Awaitable[_T]]) -> _T:
        async with linked_calls(self._link()) as channel:
            return await call(LogIntakeStub(channel))


def _read_process(pid: int) -> ProcessInfo | None:
    seen = process_info(_PROC, pid)
    return ProcessInfo(*seen) if seen else None
