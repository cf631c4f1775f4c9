"""The agent's answers for jobs: with a token of each run, which no job ever gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from lattice.base.clock import Clock
from lattice.base.errors import LoginRequired
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.features.identity.model import IssuedJobToken, JobSelf

_RENEWED_BEFORE_S = 60.0


class JobServers(Protocol):
    """The servers, as this node's agent asks them. All raise `LatticeError`."""

    async def issue(self, job_id: int, started: float) -> IssuedJobToken: ...

    async def describe(self, token: str) -> JobSelf: ...


@dataclass(frozen=True, slots=True)
class _Held:
    token: str
    until_s: float


class JobAnswers:
    """Holds a token for each run that asked, in memory only."""

    def __init__(self, servers: JobServers, clock: Clock) -> None:
        self._servers = servers
        self._clock = clock
        self._held: dict[JobIdentity, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def forget_ended(self, running: Iterable[JobIdentity]) -> None:
        """Forget tokens of jobs that are not on the node any more."""
        there = frozenset(running)
        for gone in [each for each in self._held if each not in there]:
            del self._held[gone]

    async def describe(self, job: NodeJob) -> JobSelf:
        """Who the job is. Raises `LatticeError`."""
        try:
            return await self._servers.describe(await self._token(job))
        except LoginRequired:
            # The servers have another key, or other clocks. Once more with a new one.
            self._held.pop(job.identity, None)
            return await self._servers.describe(await self._token(job))

    async def _token(self, job: NodeJob) -> str:
        now_s = self._clock.monotonic()
        held = self._held.get(job.identity)
        if held is None or held.until_s <= now_s:
            issued = await self._servers.issue(job.id, job.identity.started)
            held = _Held(issued.token, now_s + issued.lifetime_s - _RENEWED_BEFORE_S)
            self._held[job.identity] = held
        return held.token
