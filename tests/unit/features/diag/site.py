"""A running job whose nodes are those of a ward, and the service that diagnoses it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.limits import CallerLimits
from lattice.access.output import OutputAccess
from lattice.domain.metricstore import MetricStore, Point, SeriesPoints
from lattice.domain.node import Switch, Topology
from lattice.domain.presence import Presences
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.diag.model import Area, Diagnosis, StackPicture, TraceKey
from lattice.features.diag.rules.engine import known_rules
from lattice.features.diag.service.case_builder import CaseBuilder, DataSources
from lattice.features.diag.service.diagnoses import DiagService
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_facts import InMemoryFacts, InMemoryStacks
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.presences import NoPresences
from tests.fakes.sharing import sharing_parts
from tests.unit.features.diag.wards import BEGUN, NOW, Ward, healthy

ALICE = Actor(sub="sub-alice", user="alice")
BOB = Actor(sub="sub-bob", user="bob")


class TracedStore:
    """A metric store that has a ward's traces; `problem` is what it says instead."""

    def __init__(self, traces: dict[TraceKey, tuple[Point, ...]]) -> None:
        self.traces = traces
        self.problem: Exception | None = None
        self.asked: list[str] = []

    async def query_range(
        self, promql: str, *, start: float, end: float, step_s: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        del start, end, step_s, within_s
        self.asked.append(promql)
        if self.problem is not None:
            raise self.problem
        return tuple(
            SeriesPoints({"figure": metric.value, "node": node, "gpu_uuid": uuid}, points)
            for (metric, node, uuid), points in self.traces.items()
        )

    async def query(self, promql: str, **more: Any) -> Any:
        raise AssertionError((promql, more))

    async def series(self, match: str, **more: Any) -> Any:
        raise AssertionError((match, more))

    async def write(self, series: Any) -> None:
        raise AssertionError(series)


class DiagSite:
    """Alice's job 1 and Bob's job 2 run on the ward's nodes."""

    def __init__(self, ward: Ward | None = None, **facts: Any) -> None:
        self.ward = ward or healthy()
        self.clock = ManualClock(datetime.fromtimestamp(NOW, UTC))
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        names = [each.name for each in self.ward.nodes]
        self.scheduler.topology = Topology(
            (Switch("g1", 0, tuple(names[:2])), Switch("g2", 0, tuple(names[2:])))
        )
        began = datetime.fromtimestamp(BEGUN, UTC)
        told = {
            "submitted": began,
            "nodes": ",".join(names),
            "node_count": len(names),
            "gpus": 16 if self.ward.gpus else 0,
        } | facts
        self.scheduler.allocations = [
            allocation(1, "alice", "research", **told),
            allocation(2, "bob", "genomics", **told),
        ]
        self.scheduler.read()
        self.facts, self.stacks = InMemoryFacts(), InMemoryStacks()
        case = self.ward.case
        self.facts.sights, self.facts.silences = dict(case.sights), dict(case.silences)
        self.facts.told = dict(case.facts)
        self.store = TracedStore(dict(case.traces))
        self.with_store = True
        self.sharing = sharing_parts(InMemoryStateStore(self.clock))
        self.presences: Presences = NoPresences()
        self.limits: CallerLimits | None = None
        self.within_s = 3.0
        self._service: DiagService | None = None

    @property
    def service(self) -> DiagService:
        if self._service is None:
            finder = AllocationFinder(self.scheduler, self.clock, self.sharing.shares)
            store: MetricStore | None = self.store if self.with_store else None
            senses = DataSources(
                facts=self.facts,
                store=store,
                modes=lambda ref: ModeInForce(allocation=ref, mode=Mode.PROD, interval_s=30.0),
                presences=self.presences,
            )
            self._service = DiagService(
                self.scheduler,
                finder,
                OutputAccess(finder, self.sharing.notes, self.clock),
                CaseBuilder(senses, self.clock, self.ward.targets, within_s=self.within_s),
                known_rules(),
                self.stacks,
                self.clock,
                self.limits,
            )
        return self._service

    async def diagnose(
        self, name: str = "1", actor: Actor = ALICE, areas: tuple[Area, ...] = ()
    ) -> Diagnosis:
        return await self.service.diagnose(actor, name, areas)

    async def picture(self, name: str = "1", actor: Actor = ALICE) -> StackPicture:
        return await self.service.stacks(actor, name)
