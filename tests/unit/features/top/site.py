"""A job on some nodes, a metric store that says what a test tells it, and nodes that may be silent.

What a real store makes of the composed queries is tried in tests/integration/test_top_store.py.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputAccess
from lattice.domain.attempts import JobAttempt
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.node_snapshot import NodeSnapshot, NodeUnreachable
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.top.model import TopAnswer, TopQuery
from lattice.features.top.service.top import TopService
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")


class ToldStore:
    """Says what it was told to; keeps what it was asked."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.told: list[SeriesPoints] = []
        self.asked: list[str] = []
        self.ranges: list[tuple[float, float, float]] = []
        self.moments: list[float] = []
        self.problem: Exception | None = None

    def value(self, figure: str, value: float, name: str = "", **labels: str) -> None:
        named = {"__name__": PREFIX + name} if name else {}
        point = (self.clock.now().timestamp(), value)
        self.told.append(SeriesPoints({"figure": figure, **named, **labels}, (point,)))

    def alive(self, *nodes: str, ago_s: float = 5.0) -> None:
        for node in nodes:
            self.value("moment0", self.clock.now().timestamp() - ago_s, node=node)

    async def query(
        self,
        promql: str,
        *,
        at: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        self.asked.append(promql)
        self.moments.append(at)
        if self.problem is not None:
            raise self.problem
        return tuple(self.told)

    async def query_range(
        self,
        promql: str,  # noqa: ARG002
        *,
        start: float,
        end: float,
        step_s: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        self.ranges.append((start, end, step_s))
        if self.problem is not None:
            raise self.problem
        return tuple(self.told)

    async def series(self, match: str, **times: float) -> Any:  # noqa: ARG002
        raise AssertionError("nobody asks for series")

    async def write(self, series: Any) -> None:  # noqa: ARG002
        raise AssertionError("nobody writes")


class CountedLooks(InMemoryNodeLooks):
    """Keeps which nodes were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Collection[str] | None] = []

    async def read(
        self,
        attempt: JobAttempt,
        *,
        only: Collection[str] | None = None,
        within_s: float = 3.0,
    ) -> tuple[tuple[NodeSnapshot, ...], tuple[NodeUnreachable, ...]]:
        self.asked.append(only)
        return await super().read(attempt, only=only, within_s=within_s)


class Site:
    """Alice's job 1 runs on `nodes`; Bob's job 2 too."""

    def __init__(self, nodes: str = "n[1-2]", count: int = 2, **facts: Any) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        began = self.clock.now() - timedelta(hours=1)
        facts = {"gpus": None, "submitted": began, "nodes": nodes, "node_count": count} | facts
        self.scheduler.allocations = [
            allocation(1, "alice", "research", **facts),
            allocation(2, "bob", "genomics", **facts),
        ]
        self.scheduler.read()
        self.store = ToldStore(self.clock)
        self.looks = CountedLooks()
        self.state = InMemoryStateStore(self.clock)
        self.sharing = sharing_parts(self.state)
        self.sensitive: set[str] = set()
        self.degraded = ""
        self.limits: CallerLimits | None = None
        self.mode = ModeInForce(allocation="", mode=Mode.PROD, interval_s=30.0)
        self.with_store = True

    def service(self) -> TopService:
        finder = AllocationFinder(self.scheduler, self.clock, self.sharing.shares)
        return TopService(
            self.scheduler,
            OutputAccess(finder, self.sharing.notes, self.clock),
            self.store if self.with_store else None,
            self.looks,
            lambda _: self.mode,
            self.clock,
            self.limits,
            lambda: self.degraded,
            is_sensitive=lambda each: each.id in self.sensitive,
        )

    async def look(self, name: str = "1", actor: Actor = ALICE, **query: Any) -> TopAnswer:
        return await self.service().read(actor, name, TopQuery(**query))
