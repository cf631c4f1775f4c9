"""Finds the run of a job that a server asks for, and keeps counters from its start."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Generic, Protocol, TypeVar

from lattice.base.errors import Unavailable
from lattice.domain.nodejobs import (
    CLOCK_SLACK_S,
    UNREADABLE,
    JobAppeared,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
)

_MAX_ENTRIES = 1024
_T = TypeVar("_T")


class Jobs(Protocol):
    """The jobs on this node."""

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]: ...

    def changes(self) -> AsyncIterator[JobEvent]: ...


class JobRuns:
    """Finds the newest run of a job that began within the requested attempt."""

    def __init__(self, jobs: Jobs, to_server_time: Callable[[float], float]) -> None:
        """`to_server_time` converts a time of the node's clock to the servers' clock."""
        self._jobs = jobs
        self._to_server_time = to_server_time

    def find(self, job_id: int, started: float) -> JobIdentity | None:
        runs = [
            each
            for each in self._jobs.jobs
            if each.job_id == job_id and self.began(each) >= started - CLOCK_SLACK_S
        ]
        return max(runs, key=lambda each: each.started, default=None)

    def check_readable(self, identity: JobIdentity) -> None:
        """Raise `Unavailable` while reading a process of the job would block."""
        job = self._jobs.jobs.get(identity)
        if job is not None and job.unread:
            raise Unavailable(f"{UNREADABLE}.")

    def began(self, identity: JobIdentity) -> float:
        return self._to_server_time(identity.started)


class Baselines(Generic[_T]):
    """Values from when each job appeared, for later comparison."""

    def __init__(self, jobs: Jobs, read: Callable[[], Awaitable[_T | None]]) -> None:
        """`read` returns None on failure and never raises."""
        self._jobs = jobs
        self._read = read
        self._seen: OrderedDict[JobIdentity, _T] = OrderedDict()

    def of(self, identity: JobIdentity) -> _T | None:
        return self._seen.get(identity)

    async def run(self) -> None:
        """Record values until cancelled."""
        async for event in self._jobs.changes():
            if isinstance(event, JobAppeared) and event.job.identity not in self._seen:
                seen = await self._read()
                if seen is not None:
                    self._seen[event.job.identity] = seen
                while len(self._seen) > _MAX_ENTRIES:
                    self._seen.popitem(last=False)
            elif isinstance(event, NodeJobEnded):
                self._seen.pop(event.job.identity, None)
            await asyncio.sleep(0)
