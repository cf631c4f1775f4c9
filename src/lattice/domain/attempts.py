"""Finds the attempt of an allocation that a node means.

A node reports a job id and when the job began there. Only Slurm determines its owner, its tenant
and its project.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation, Attempt, Reference
from lattice.domain.nodejobs import CLOCK_SLACK_S, match_attempt
from lattice.domain.nodeset import NodeSet
from lattice.domain.scheduler import PastQuestion, Scheduler, SchedulerReading, Scope

_ACCOUNT_KNOWN_WITHIN = timedelta(minutes=5)
"""Accounts are read once a minute."""
_CACHE_TTL_S = 300.0
_MAX_CACHED = 20_000
_EVERYTHING = Scope(everything=True)


class NotKnownYet(NotFound):
    """Slurm's last reading is older than the job; a later one may have it."""


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt of an allocation that Slurm has."""

    allocation: Allocation
    attempt: Attempt

    def is_same_run(self, other: JobAttempt) -> bool:
        """Compares the start times if both are known and the user is the same.

        The number of earlier attempts may not be known yet, and job ids are reused.
        """
        begun, there = self.attempt.started, other.attempt.started
        mine, its = self.allocation, other.allocation
        if begun is None or there is None or mine.user != its.user:
            return (mine.ref, self.attempt.number) == (its.ref, other.attempt.number)
        return abs(begun - there) <= timedelta(seconds=CLOCK_SLACK_S)


def attempts_of(allocation: Allocation) -> tuple[Attempt, ...]:
    """All attempts. An allocation without a list gets one with its only attempt."""
    if allocation.attempts:
        return allocation.attempts
    return (
        Attempt(
            number=allocation.attempt,
            state=allocation.state,
            submitted=allocation.submitted,
            started=allocation.started,
            ended=allocation.ended,
            nodes=allocation.nodes,
            node_count=allocation.node_count,
            exit_code=allocation.exit_code,
            sluid=allocation.sluid,
        ),
    )


def chosen_attempt(allocation: Allocation, number: int) -> Attempt:
    """The attempt with this number; for 0 the newest that has started. Raises `NotFound`.

    If none has started, 0 means the last one.
    """
    attempts = attempts_of(allocation)
    if not number:
        return next((each for each in reversed(attempts) if each.started), attempts[-1])
    for each in attempts:
        if each.number == number:
            return each
    raise NotFound(
        f"Allocation {allocation.id} has no attempt {number}.", hint=f"It has {len(attempts)}."
    )


def named(
    allocation: Allocation, attempt: Attempt, accounts: AccountTree, now: datetime
) -> JobAttempt:
    """The attempt, once its tenant is known. Raises `Unavailable` before that.

    The server may have just started, or the account may be new. Data stored without a tenant would
    never be found again.
    """
    settled = bool(accounts.accounts) and now - allocation.submitted > _ACCOUNT_KNOWN_WITHIN
    if allocation.account and not allocation.tenant and not settled:
        raise Unavailable(
            f"Slurm's accounting has not said yet whose account {allocation.account} is.",
            hint="Try again in a few seconds.",
        )
    return JobAttempt(allocation, attempt)


@dataclass(frozen=True, slots=True)
class EndedAttempts:
    """Attempts that ended on a node; not `complete` if a part of Slurm does not answer."""

    attempts: tuple[JobAttempt, ...]
    complete: bool


AttemptLookup: TypeAlias = Callable[[str, int, float], Awaitable[JobAttempt]]
"""The attempt of a job that began on a node at a time, as `AttemptFinder.of`."""


class AttemptFinder:
    """Finds attempts for nodes, and caches them for five minutes."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._known: dict[tuple[str, int, float], tuple[float, JobAttempt]] = {}

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
        try:
            past = await self._scheduler.past(PastQuestion(scope=_EVERYTHING, since=since))
        except Unavailable:
            past, complete = (), False
        found: dict[tuple[int, datetime | None], JobAttempt] = {}
        for each in (*reading.cluster.allocations, *past):
            for attempt in attempts_of(each):
                ended = attempt.ended
                if ended is not None and ended >= since and _ran_on(attempt, node):
                    found.setdefault((each.job_id, attempt.started), JobAttempt(each, attempt))
        return EndedAttempts(tuple(found.values()), complete)

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
