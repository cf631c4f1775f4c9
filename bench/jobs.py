"""What 50 000 jobs on 10 000 nodes cost a server, once they are read. The jobs are made up.

    python -m bench.jobs

One JSON line a figure, as processor time. `bare` is the same answer from a walk over all jobs, in
the same round. `value` is the median of the rounds, `low` and `high` hold the middle half.

Between two readings 400 jobs change: 200 a second, read every two seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from bench.figures import Figure, against, measured
from lattice.access.actor import Actor, Role
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.permission import Permission
from lattice.base.clock import SystemClock
from lattice.domain.allocation import Allocation, Reference, State
from lattice.domain.allocation_index import AllocationIndex
from lattice.domain.attempts import attempts_of
from lattice.domain.nodeset import NodeSet
from lattice.domain.presence import PresenceReading, Presences
from lattice.domain.runsummary import summary_key
from lattice.domain.scheduler import LiveCluster, PastQuestion, SchedulerReading
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.source import AGREED, LIVE, Source
from lattice.domain.state import Entry
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.monitoring.service.cluster import ClusterCounts
from lattice.features.telemetry.service.job_settings_publisher import JobSettingsPublisher
from lattice.features.telemetry.service.modes import AgreedModes
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.ended_attempts import EndedAttemptQueue
from lattice.foundation.unfinished import UnfinishedAllocations
from lattice.server.cluster.sensitive_nodes import SensitiveNodes

JOBS, NODES, CHANGES = 50_000, 10_000, 400
ROUNDS = 21
WALKS = 5
"""Agents that a round asks by a walk over all."""
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
TICK = f"a tick, {CHANGES} of {JOBS} jobs changed, against a walk over all"
SENSITIVE = SensitiveWork(Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),)))
OPERATOR = Actor(sub="operator", user="olga", role=Role.SYSTEM_ADMIN)


def job(number: int, state: State = State.RUNNING) -> Allocation:
    """The number chooses owner and nodes: one node, and for each hundredth job 64."""
    first = number % (NODES - 64)
    nodes = f"n[{first}-{first + 63}]" if number % 100 == 0 else f"n{first}"
    ended = NOW - timedelta(seconds=number % 300) if state.finished else None
    return Allocation(
        cluster="made", id=str(number), job_id=number, name=f"job-{number}",
        user=f"user{number % 500}", account=f"account{number % 50}", tenant="tenant",
        partition="batch", qos="normal", vcluster="batch", state=state,
        submitted=NOW - timedelta(hours=2), first_submitted=NOW - timedelta(hours=2),
        started=NOW - timedelta(hours=1), ended=ended, nodes=nodes,
        node_count=64 if number % 100 == 0 else 1,
    )  # fmt: skip


class MadeUp:
    """The port `Scheduler` with jobs that are made up; a tenth of them have ended."""

    cluster_name = "made"

    def __init__(self) -> None:
        records = [job(number, _state(number)) for number in range(1, JOBS + 1)]
        self.records = tuple(records)
        self.index = AllocationIndex().next(self.records)

    def live(self) -> SchedulerReading:
        source = Source(name=LIVE, ok=True, as_of=NOW, age_s=0.0)
        return SchedulerReading(LiveCluster(read_at=NOW, allocations=self.index), source)

    async def fresh(
        self,
        *,
        nodes: bool = False,  # noqa: ARG002
        accounts: bool = False,  # noqa: ARG002
        users: Collection[str] = (),  # noqa: ARG002
    ) -> SchedulerReading:
        return self.live()

    async def past(
        self,
        question: PastQuestion,
        *,
        patience_s: float | None = None,  # noqa: ARG002
    ) -> tuple[Allocation, ...]:
        """Those that have ended, as the accounting store has them too."""
        if question.reference is not None:
            return ()
        return tuple(each for each in self.records if each.state.finished)

    def change(self, round_: int) -> tuple[Allocation, ...]:
        """The next reading: some jobs have other records."""
        records = list(self.records)
        for number in range(CHANGES):
            at = (round_ * CHANGES + number) % JOBS
            records[at] = replace(records[at], time_limit_s=round_ + 1)
        self.records = tuple(records)
        return self.records


def _state(number: int) -> State:
    return State.COMPLETED if number % 10 == 0 else State.RUNNING


def used(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


async def used_by(work: Awaitable[object]) -> float:
    begun = time.process_time()
    await work
    return time.process_time() - begun


def readings(scheduler: MadeUp) -> Figure:
    ours, bare = [], []
    for round_ in range(ROUNDS):
        records = scheduler.change(round_)
        bare.append(used(partial(AllocationIndex().next, records)))
        ours.append(used(partial(scheduler.index.next, records)))
        scheduler.index = scheduler.index.next(records)
    name = f"the index of the next reading, {CHANGES} of {JOBS} jobs changed, against a new one"
    return against(name, "s", ours, bare, 1 / 5)


def walked(scheduler: MadeUp, node: str, since: datetime) -> list[Allocation]:
    """As without an index: every attempt of every job."""
    return [
        each
        for each in scheduler.records
        for attempt in attempts_of(each)
        if attempt.ended is not None
        and attempt.ended >= since
        and node in NodeSet.parse(attempt.nodes)
    ]


def matching(scheduler: MadeUp, reference: Reference) -> list[Allocation]:
    return [each for each in scheduler.records if reference.matches(each)]


async def agents(scheduler: MadeUp) -> Figure:
    """All agents ask at once, each for the time since it was away."""
    totals = []
    for _ in range(3):
        finder = AttemptFinder(scheduler, SystemClock())
        asked = (
            finder.ended_on(f"n{node}", NOW - timedelta(seconds=200 + node % 60))
            for node in range(NODES)
        )
        totals.append(await used_by(asyncio.gather(*asked)))
    return measured(f"{NODES} agents ask for their jobs after a restart", "s", totals, at_most=20.0)


async def one_agent(scheduler: MadeUp) -> Figure:
    finder = AttemptFinder(scheduler, SystemClock())
    ours, bare, since = [], [], NOW - timedelta(seconds=240)
    for node in range(0, NODES, NODES // ROUNDS):
        bare.append(used(partial(walked, scheduler, f"n{node}", since)))
        ours.append(await used_by(finder.ended_on(f"n{node}", since)))
    return against("an agent asks for its jobs, against a walk over all", "s", ours, bare, 1 / 50)


async def finding(scheduler: MadeUp) -> list[Figure]:
    finder = AllocationFinder(scheduler, SystemClock())
    ours, bare = [], []
    for number in range(1, JOBS, JOBS // ROUNDS):
        reference = Reference(number)
        bare.append(used(partial(matching, scheduler, reference)))
        found = finder.find(OPERATOR, Permission.VIEW_ALLOCATIONS, str(number))
        ours.append(await used_by(found))
    name = f"an operator finds one of {JOBS} jobs"
    return [
        against(f"{name}, against a walk over all", "s", ours, bare, None),
        measured(name, "ms", [1000 * each for each in ours], at_most=1.0),
    ]


class Silent:
    """The port `Presences` and `StateView`, with nothing in them."""

    source = Source(name=AGREED, ok=True, as_of=NOW, age_s=0.0)
    entries: Mapping[str, Entry] = {}

    def presences(self) -> PresenceReading:
        return PresenceReading({}, {}, self.source)


def unfinished(scheduler: MadeUp) -> set[str]:
    return {each.ref for each in scheduler.records if not each.state.finished}


def nodes_of_sensitive(scheduler: MadeUp) -> set[str]:
    return {
        node
        for each in scheduler.records
        if each.nodes and SENSITIVE.covers(each)
        for node in NodeSet.parse(each.nodes)
    }


def ended(scheduler: MadeUp) -> list[tuple[str, float]]:
    return [
        (each.ref, attempt.ended.timestamp())
        for each in scheduler.records
        for attempt in attempts_of(each)
        if attempt.started is not None and attempt.ended is not None
    ]


def counted(scheduler: MadeUp) -> Counter[tuple[str, str]]:
    running = (each for each in scheduler.records if not each.state.finished)
    return Counter((each.account, each.state.value) for each in running)


async def ticks(scheduler: MadeUp) -> list[Figure]:
    """One turn of each follower of the jobs after a reading, against a walk over all jobs."""
    clock, silent = SystemClock(), Silent()
    tally, nodes = UnfinishedAllocations(scheduler), SensitiveNodes(scheduler, SENSITIVE)
    modes = cast("AgreedModes", SimpleNamespace(switched={}))
    publisher = JobSettingsPublisher(scheduler, modes, clock)
    queue = EndedAttemptQueue(scheduler, clock, summary_key, 120.0)
    counts = ClusterCounts(scheduler, cast("Presences", silent), names=True)
    followers: dict[str, tuple[Callable[[], Any], Callable[[], object]]] = {
        "unfinished allocations": (tally.refs, partial(unfinished, scheduler)),
        "whether a node has sensitive work": (
            partial(nodes.has, "n5"),
            partial(nodes_of_sensitive, scheduler),
        ),
        "settings of jobs for agents": (publisher.check, partial(unfinished, scheduler)),
        "attempts that have ended": (queue.due, partial(ended, scheduler)),
        "jobs as series": (counts.count, partial(counted, scheduler)),
    }
    figures = []
    for name, (follower, walk) in followers.items():
        ours, bare = [], []
        for round_ in range(ROUNDS + 1):
            # Who drops the index before this one last pays for it, once for all: not here.
            before = scheduler.index
            scheduler.index = before.next(scheduler.change(round_))
            bare.append(used(walk))
            ours.append(await used_by(_called(follower)))
        # The first turn reads all jobs.
        figures.append(against(f"{TICK}: {name}", "s", ours[1:], bare[1:], 1 / 5))
    return figures


async def _called(follower: Callable[[], Any]) -> None:
    found = follower()
    if inspect.isawaitable(found):
        await found


async def measure() -> bool:
    scheduler = MadeUp()
    figures = [readings(scheduler), await one_agent(scheduler), await agents(scheduler)]
    figures += await finding(scheduler)
    figures += await ticks(scheduler)
    for figure in figures:
        figure.print()
    return all(figure.ok is not False for figure in figures)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure()) else 1)
