"""Jobs by state, account and reason; nodes by state and health; what agents report of themselves.

Every 10 s. Of the jobs only those are read that have changed. The nodes are read in slices, which
give way to other work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.allocation_index import AllocationTally
from lattice.domain.claim import Claims, ClaimSet, NoClaims
from lattice.domain.node import HealthState, Node
from lattice.domain.presence import Presence, PresenceReading, Presences, with_agent
from lattice.domain.scheduler import Scheduler, SchedulerReading
from lattice.features.monitoring.model import capped, pending_class
from lattice.foundation.series import SeriesValue

T = TypeVar("T")
EVERY_S = 10.0
MOST_ACCOUNTS = 100
MOST_PARTITIONS = 50
_SLICE = 1000
_UNFINISHED = tuple(state for state in State if not state.finished)


class _JobKind(NamedTuple):
    """What is counted of an unfinished job."""

    account: str
    state: State
    partition: str = ""
    """Of a pending job, as the class of its reason."""
    pending: str = ""


def _kinds(job: Allocation) -> Iterator[_JobKind]:
    if job.state is State.PENDING:
        yield _JobKind(job.account, job.state, job.partition, pending_class(job.reason).value)
    elif not job.state.finished:
        yield _JobKind(job.account, job.state)


class ClusterCounts:
    """A background loop; `values` are read at each scrape."""

    def __init__(
        self,
        scheduler: Scheduler,
        presences: Presences,
        claims: Claims | None = None,
        *,
        names: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`names`: accounts may be shown."""
        self._scheduler = scheduler
        self._presences = presences
        self._names = names
        self._claims = claims or NoClaims()
        self._sleep = sleep
        self._kinds = AllocationTally(_kinds)
        self._jobs: tuple[SeriesValue, ...] = ()
        self._agents: tuple[SeriesValue, ...] = ()

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            await self.count()
            await self._sleep(EVERY_S)

    def values(self) -> Iterator[SeriesValue]:
        """What was counted last, of what is current now."""
        if is_complete(self._live()):
            yield from self._jobs
        if self._presences.presences().source.ok:
            yield from self._agents

    async def count(self) -> None:
        """Count once."""
        reading, agents = self._live(), self._presences.presences()
        self._agents = tuple(_of_agents(tuple(agents.records.values())))
        if reading is None:
            return
        jobs = self._kinds.of(reading.cluster.index)
        claims = self._held()
        nodes: Counter[tuple[str, str]] = Counter()
        async for node in _slices(reading.cluster.nodes):
            nodes[_state_and_health(node, agents, claims)] += 1
        self._jobs = (*self._of_jobs(jobs), *_of_nodes(nodes))

    def _held(self) -> ClaimSet:
        try:
            return self._claims.claims()
        except Unavailable:
            return ClaimSet()

    def _live(self) -> SchedulerReading | None:
        try:
            return self._scheduler.live()
        except Unavailable:
            return None

    def _of_jobs(self, jobs: Mapping[_JobKind, int]) -> Iterator[SeriesValue]:
        states: Counter[State] = Counter()
        accounts: Counter[tuple[str, str]] = Counter()
        pending: Counter[tuple[str, str]] = Counter()
        for kind, count in jobs.items():
            states[kind.state] += count
            accounts[kind.account, kind.state.value] += count
            if kind.state is State.PENDING:
                pending[kind.partition, kind.pending] += count
        for state in _UNFINISHED:
            yield SeriesValue("lattice_jobs", states[state], (state.value,))
        yield from _capped_values("lattice_jobs_pending", pending, MOST_PARTITIONS)
        if self._names:
            yield from _capped_values("lattice_account_jobs", accounts, MOST_ACCOUNTS)


def is_complete(reading: SchedulerReading | None) -> bool:
    """True if the reading is current and Slurm hid nothing from it."""
    return reading is not None and reading.source.ok and not reading.source.incomplete


async def _slices(items: Sequence[T]) -> AsyncIterator[T]:
    for number, each in enumerate(items, start=1):
        yield each
        if number % _SLICE == 0:
            await asyncio.sleep(0)


def _capped_values(name: str, counts: Counter[tuple[str, str]], most: int) -> Iterator[SeriesValue]:
    """The counts, with a bound on the values of the first label."""
    totals: Counter[str] = Counter()
    for (first, _), count in counts.items():
        totals[first] += count
    shown = capped(totals, most)
    folded: Counter[tuple[str, str]] = Counter()
    for (first, second), count in counts.items():
        folded[shown[first], second] += count
    for labels, count in folded.items():
        yield SeriesValue(name, count, labels)


def _state_and_health(node: Node, agents: PresenceReading, claims: ClaimSet) -> tuple[str, str]:
    if agents.source.ok:
        node = with_agent(node, agents)
    health = node.agent.health if node.agent is not None else HealthState.UNKNOWN
    return claims.state_of(node).value, health.value


def _of_nodes(counts: Counter[tuple[str, str]]) -> Iterator[SeriesValue]:
    for labels, count in counts.items():
        yield SeriesValue("lattice_nodes", count, labels)


def _of_agents(records: Sequence[Presence]) -> Iterator[SeriesValue]:
    facts = [each.health.agent for each in records if each.linked]
    spools = [each.spool_bytes for each in facts if each.spool_bytes is not None]
    shares = [
        each.spool_bytes / each.spool_most_bytes
        for each in facts
        if each.spool_bytes is not None and each.spool_most_bytes
    ]
    offsets = [abs(each.clock_ahead_s) for each in facts if each.clock_ahead_s is not None]
    if spools:
        yield SeriesValue("lattice_agents_spool_bytes", sum(spools))
    if shares:
        yield SeriesValue("lattice_agents_spool_fullest_ratio", max(shares))
    if offsets:
        yield SeriesValue("lattice_agents_clock_offset_seconds", max(offsets))
