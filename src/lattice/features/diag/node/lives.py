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

_MOST_KEPT = 1024
_T = TypeVar("_T")


class Jobs(Protocol):
    """The jobs on this node."""

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]: ...

    def changes(self) -> AsyncIterator[JobEvent]: ...


class JobRuns:
    """Finds the newest run of a job that began within the requested attempt."""

    def __init__(self, jobs: Jobs, told: Callable[[float], float]) -> None:
        """`told` converts a time of the node's clock to the servers' clock."""
        self._jobs = jobs
        self._told = told

    def find(self, job_id: int, started: float) -> JobIdentity | None:
        lives = [
            each
            for each in self._jobs.jobs
            if each.job_id == job_id and self.began(each) >= started - CLOCK_SLACK_S
        ]
        return max(lives, key=lambda each: each.started, default=None)

    def check_readable(self, identity: JobIdentity) -> None:
        """Raise `Unavailable` while reading a process of the job would block."""
        job = self._jobs.jobs.get(identity)
        if job is not None and job.unread:
            raise Unavailable(f"{UNREADABLE}.")

    def began(self, identity: JobIdentity) -> float:
        return self._told(identity.started)


class Baselines(Generic[_T]):
    """Values from when each job appeared, for later comparison."""

    def __init__(self, jobs: Jobs, look: Callable[[], Awaitable[_T | None]]) -> None:
        """`look` returns None on failure and never raises."""
        self._jobs = jobs
        self._look = look
        self._seen: OrderedDict[JobIdentity, _T] = OrderedDict()

    def of(self, identity: JobIdentity) -> _T | None:
        return self._seen.get(identity)

    async def run(self) -> None:
        """Record values until cancelled."""
        async for event in self._jobs.changes():
            if isinstance(event, JobAppeared) and event.job.identity not in self._seen:
                seen = await self._look()
                if seen is not None:
                    self._seen[event.job.identity] = seen
                while len(self._seen) > _MOST_KEPT:
                    self._seen.popitem(last=False)
            elif isinstance(event, NodeJobEnded):
                self._seen.pop(event.job.identity, None)
            await asyncio.sleep(0)
