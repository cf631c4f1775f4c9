"""Builds the agent's part of job identity: the socket, and the questions to the servers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lattice.adapters.linux.caller import CallerUnknown, caller_of, job_of_caller
from lattice.adapters.linux.nodejobs import NodeJobs, Roots
from lattice.base.clock import Clock
from lattice.base.errors import NotFound
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.nodejobs import NodeJob
from lattice.features.identity.model import IssuedJobToken, JobSelf
from lattice.features.identity.node.job_answers import JobAnswers
from lattice.features.identity.node.job_socket import JobSocket, ReportedEvents
from lattice.features.link.node.dialler import Linked, linked_calls
from lattice.features.link.node.servertime import ServerTime
from lattice.wire.convert import value_of
from lattice.wire.v1 import identity_pb2 as pb
from lattice.wire.v1.identity_pb2_grpc import JobIdentityServiceStub

_log = logging.getLogger("lattice.agent")

_T = TypeVar("_T")
_ASK_S = 10.0
_READ_AGAIN_S = 1.0


class LinkedJobServers:
    """Asks the linked replica; `link` returns None while there is none."""

    def __init__(self, link: Callable[[], Linked | None], servers: ServerTime) -> None:
        self._link = link
        self._servers = servers

    async def issue(self, job_id: int, started: float) -> IssuedJobToken:
        moment = self._servers.to_server_time(started)
        request = pb.IssueJobTokenRequest(job_id=job_id, started=moment)
        answer = await self._ask(lambda stub: stub.IssueJobToken(request, timeout=_ASK_S))
        return value_of(answer, IssuedJobToken)

    async def describe(self, token: str) -> JobSelf:
        request = pb.DescribeJobRequest(token=token)
        answer = await self._ask(lambda stub: stub.DescribeJob(request, timeout=_ASK_S))
        return value_of(answer, JobSelf)

    async def _ask(self, call: Callable[[Any], Awaitable[_T]]) -> Any:
        async with linked_calls(self._link()) as channel:
            return await call(JobIdentityServiceStub(channel))


@dataclass(frozen=True, slots=True)
class NodeCaller:
    """A process that connected, and its job on this node."""

    uid: int
    job: NodeJob | None


class NodeCallers:
    """Finds the jobs of those who connect."""

    def __init__(self, jobs: NodeJobs, answers: JobAnswers, cgroup: Path, clock: Clock) -> None:
        self._jobs = jobs
        self._answers = answers
        self._cgroup = cgroup
        self._clock = clock
        self._read_at_s = float("-inf")

    async def identify(self, connection: socket.socket) -> NodeCaller:
        """Raises `NotFound` for a process that can't be known."""
        try:
            # In a thread: the kernel may hold whoever reads a process.
            caller = await asyncio.to_thread(caller_of, connection)
        except CallerUnknown as error:
            _log.info("a process asks for its job and is not known: %s", error)
            raise NotFound("You are in no job of yours on this node.") from None
        found = job_of_caller(caller, self._jobs.jobs.values(), self._cgroup)
        if found is None and "slurm" in caller.cgroup and self._may_read():
            await self._jobs.refresh()
            found = job_of_caller(caller, self._jobs.jobs.values(), self._cgroup)
        self._answers.forget_ended(self._jobs.jobs)
        return NodeCaller(caller.uid, found)

    def _may_read(self) -> bool:
        """True once a second: reading all jobs costs processor time, and anybody can ask."""
        now_s = self._clock.monotonic()
        if now_s - self._read_at_s < _READ_AGAIN_S:
            return False
        self._read_at_s = now_s
        return True


def job_identity_loops(
    path: str,
    jobs: NodeJobs,
    link: Callable[[], Linked | None],
    servers: ServerTime,
    clock: Clock,
    events: ReportedEvents | None,
) -> tuple[Loop, ...]:
    """The socket's loop; none without a path. `events` keeps what jobs report."""
    if not path:
        return ()
    answers = JobAnswers(LinkedJobServers(link, servers), clock)
    callers = NodeCallers(jobs, answers, Roots().cgroup, clock)
    listening = JobSocket(Path(path), callers.identify, answers.describe, clock, events)
    return (Loop("jobs' questions", listening.run, OnFailure.RESTART),)
