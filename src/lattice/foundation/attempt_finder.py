"""Finds the attempt of an allocation that a node means, and what ended while its agent was away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

from lattice.base.clock import Clock
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.allocation import Allocation, Attempt, Reference
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.attempts import EndedAttempts, JobAttempt, NotKnownYet, attempts_of, named
from lattice.domain.nodejobs import CLOCK_SLACK_S, match_attempt
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import PastQuestion, Scheduler, SchedulerReading, Scope

_CACHE_TTL_S = 300.0
_MAX_CACHED = 20_000
_EVERYTHING = Scope(everything=True)
_SHARED_S = 600.0
"""Times within such a stretch are asked of accounting as one."""
_PAST_TTL_S = 10.0
"""How long an answer is shared, or a failure."""


class AttemptFinder:
    """Finds attempts for nodes, and caches them for five minutes."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._known: dict[tuple[str, int, float], tuple[float, JobAttempt]] = {}
        self._past: dict[datetime, tuple[float, asyncio.Task[AllocationIndex]]] = {}

    async def of(self, node: str, job_id: int, started: float) -> JobAttempt:
        """The attempt that ran on this node at that time. Raises `NotFound` and `Unavailable`.

        `NotKnownYet` is the `NotFound` of a job that is younger than Slurm's last reading.
        """
        key = (node, job_id, started)
        cached = self._known.get(key)
        if cached is not None and cached[0] > self._clock.monotonic():
            return cached[1]
        found = await self._found(node, job_id, started)
        if found is None:
            raise NotFound(
                f"Slurm knows of no job {job_id} that ran on node {node} then.",
                hint="Nothing is taken from a node for a job that is not there.",
            )
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        self._known[key] = (self._clock.monotonic() + _CACHE_TTL_S, found)
        return found

    async def _found(self, node: str, job_id: int, started: float) -> JobAttempt | None:
        name = self._in(self._scheduler.live(), node, job_id, started)
        if name is not None:
            return name
        reading = await self._scheduler.fresh()
        name = self._in(reading, node, job_id, started, CLOCK_SLACK_S)
        if name is not None:
            return name
        question = PastQuestion(scope=_EVERYTHING, reference=Reference(job_id))
        past = [each for each in await self._scheduler.past(question) if each.job_id == job_id]
        for each in past:
            name = self._on_node(each, node, started)
            if name is not None:
                return name
        if not reading.source.ok or reading.cluster.read_at.timestamp() < started + CLOCK_SLACK_S:
            raise NotKnownYet(
                f"Slurm has not answered since job {job_id} began on node {node}.",
                hint="Nothing is taken from a node for a job that is not there.",
            )
        return self._only_one((*reading.cluster.of_job(job_id), *past), node, started)

    def _only_one(
        self, allocations: Iterable[Allocation], node: str, started: float
    ) -> JobAttempt | None:
        """The attempt that ended on this node and began before that time, if there is exactly one.

        An agent that was away has only the latest time at which a job can have begun.
        """
        latest = datetime.fromtimestamp(started + CLOCK_SLACK_S, UTC)
        fitting = {
            attempt.started: (allocation, attempt)
            for allocation in allocations
            for attempt in attempts_of(allocation)
            if _ran_on(attempt, node)
            and attempt.started is not None
            and attempt.started <= latest
            and attempt.ended is not None
        }
        if len(fitting) != 1:
            return None
        return self._named(*next(iter(fitting.values())))

    def _in(
        self,
        reading: SchedulerReading,
        node: str,
        job_id: int,
        started: float,
        slack_s: float = 0.0,
    ) -> JobAttempt | None:
        cluster = reading.cluster
        if cluster.read_at.timestamp() < started - slack_s:
            # Its current attempt may be the one before this one.
            return None
        for each in cluster.of_job(job_id):
            name = self._on_node(each, node, started)
            if name is not None:
                return name
        return None

    async def ended_on(self, node: str, since: datetime) -> EndedAttempts:
        """Attempts that ended on this node since a time.

        The controller forgets a job after `MinJobAge`; the accounting store still has it.
        """
        reading = await self._scheduler.fresh()
        complete = reading.source.ok
        past: tuple[Allocation, ...] = ()
        try:
            past = (await self._past_since(since)).on_node(node)
        except Unavailable:
            complete = False
        found: dict[tuple[int, datetime | None], JobAttempt] = {}
        for each in (*reading.cluster.on_node(node), *past):
            for attempt in attempts_of(each):
                ended = attempt.ended
                if ended is not None and ended >= since and _ran_on(attempt, node):
                    found.setdefault((each.job_id, attempt.started), JobAttempt(each, attempt))
        return EndedAttempts(tuple(found.values()), complete)

    async def _past_since(self, since: datetime) -> AllocationIndex:
        """At least what ended since then. After a restart all agents ask: they share answers."""
        begin = datetime.fromtimestamp(since.timestamp() // _SHARED_S * _SHARED_S, UTC)
        now_s = self._clock.monotonic()
        self._past = {at: each for at, each in self._past.items() if now_s < each[0]}
        if begin not in self._past:
            asking = asyncio.create_task(self._read_past(begin), name="past jobs of nodes")
            self._past[begin] = (now_s + _PAST_TTL_S, asking)
        # Whoever leaves earlier does not take the answer from the others.
        return await asyncio.shield(self._past[begin][1])

    async def _read_past(self, begin: datetime) -> AllocationIndex:
        found = await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=begin))
        return await asyncio.to_thread(AllocationIndex().next, found)

    def _on_node(self, allocation: Allocation, node: str, started: float) -> JobAttempt | None:
        here = [each for each in attempts_of(allocation) if _ran_on(each, node)]
        attempt = match_attempt(here, started)
        return None if attempt is None else self._named(allocation, attempt)

    def _named(self, allocation: Allocation, attempt: Attempt) -> JobAttempt:
        accounts = self._scheduler.live().cluster.accounts
        return named(allocation, attempt, accounts, self._clock.now())


def _ran_on(attempt: Attempt, node: str) -> bool:
    return node in _names_of(attempt.nodes)


@lru_cache(maxsize=16)
def _names_of(nodes: str) -> NodeSet:
    """Cached, because all nodes of a large job ask one after another."""
    try:
        return NodeSet.parse(nodes)
    except ValueError:
        return NodeSet()
