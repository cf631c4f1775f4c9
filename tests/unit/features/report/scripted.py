"""A job, and a metric store that answers the parts of a question from a table."""

# ruff: noqa: ARG002 - a port's methods have all their arguments
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.base.errors import Unavailable
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent
from lattice.domain.runsummary import AccountedUse
from lattice.features.report.service.report import ReportService
from lattice.features.report.service.run_meter import RunMeter
from lattice.features.report.service.summaries import StoredSummaries
from lattice.foundation.run_finder import TrainingRunFinder
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.sharing import sharing_parts

GIB = 2**30
HOUR_S = 3600
_PART = re.compile(r'"figure", "([^"]+)"')
_SERIES = re.compile(r"lattice_([a-z0-9_]+)\{")


class ScriptedStore:
    """`parts`: by the part's name, (node, GPU) and a value. `measured`: nodes in each stretch."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[tuple[str, str], float]] = {}
        self.source = "host_local_probe"
        self.scope = ""
        self.measured = 2.0
        self.coarse: dict[str, float] = {}
        self.silent = False
        self.refuses = False
        self.questions: list[str] = []

    def tell(self, part: str, **values: float) -> None:
        """`n1=…` for a node, `n1__GPU_a=…` for a GPU."""
        table = self.parts.setdefault(part, {})
        for name, value in values.items():
            node, _, gpu = name.partition("__")
            table[node, gpu] = value

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        raise AssertionError("a report writes nothing")

    async def query(
        self, promql: str, *, at: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        self._ask(promql)
        found = []
        for part in _PART.findall(promql):
            for (node, gpu), value in self.parts.get(part, {}).items():
                labels = {"figure": part, "node": node, "gpu_uuid": gpu, "source": self.source}
                if "network" in part:
                    labels["scope"] = self.scope
                shown = {name: text for name, text in labels.items() if text}
                found.append(SeriesPoints(shown, ((at, value),)))
        return tuple(found)

    async def query_range(
        self, promql: str, *, start: float, end: float, step_s: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        self._ask(promql)
        times = [start + step * step_s for step in range(int((end - start) / step_s) + 1)]
        if promql.startswith("count ("):
            return (SeriesPoints({}, tuple((time, self.measured) for time in times)),)
        (series,) = set(_SERIES.findall(promql))
        if series not in self.coarse:
            return ()
        value = self.coarse[series]
        return tuple(
            SeriesPoints({"figure": part}, tuple((time, value * times_) for time in times))
            for part, times_ in (("mean", 1), ("peak", 2))
        )

    async def series(
        self, match: str, *, start: float, end: float, within_s: float = 10.0
    ) -> tuple[Mapping[str, str], ...]:
        raise AssertionError(match)

    def _ask(self, promql: str) -> None:
        self.questions.append(promql)
        if self.silent:
            raise StoreSilent("connection refused")
        if self.refuses:
            raise BadQuery("too many samples")


class ScriptedAccounting:
    """What sacct would say."""

    def __init__(self, told: AccountedUse | None = None) -> None:
        self.told = told
        self.down = False

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        if self.down:
            raise Unavailable("sacct does not answer.")
        return self.told


class Site:
    """One job of alice's on two nodes: 16 CPUs, 200 GiB, 4 GPUs, 4 h asked for, 2 h taken."""

    def __init__(self, **facts: Any) -> None:
        self.clock = ManualClock(RECORDED)
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        self.objects = InMemoryObjectStore(self.clock)
        self.store = ScriptedStore()
        self.accounting = ScriptedAccounting()
        begun = RECORDED - timedelta(hours=3)
        job: dict[str, Any] = {
            "state": State.COMPLETED,
            "submitted": begun - timedelta(minutes=10),
            "started": begun,
            "ended": begun + timedelta(hours=2),
            "nodes": "n[1-2]",
            "node_count": 2,
            "tasks": 2,
            "cpus": 16,
            "gpus": 4,
            "memory_bytes": 200 * GIB,
            "time_limit_s": 4 * HOUR_S,
        }
        self.scheduler.allocations.append(allocation(42, "alice", "research", **job | facts))

    @property
    def attempt(self) -> JobAttempt:
        (job,) = self.scheduler.allocations
        return JobAttempt(job, attempts_of(job)[-1])

    def busy(self) -> None:
        """Everything measured on both nodes, and nothing of it wasted."""
        tell = self.store.tell
        tell("max cpu_seconds_total", n1=50_000.0, n2=55_000.0)
        tell("count cpu_seconds_total", n1=241.0, n2=241.0)
        tell("max memory_used_bytes", n1=80 * GIB, n2=90 * GIB)
        tell("max memory_limit_bytes", n1=100 * GIB, n2=100 * GIB)
        tell("max memory_oom_kills_total", n1=0.0, n2=0.0)
        tell("max io_read_bytes_total", n1=3 * GIB, n2=1 * GIB)
        tell("max io_write_bytes_total", n1=2.0, n2=2.0)
        tell("max network_tx_bytes_total", n1=500.0, n2=700.0)
        tell("min network_tx_bytes_total", n1=100.0, n2=200.0)
        cards = {"n1__GPU_a": 90.0, "n1__GPU_b": 80.0, "n2__GPU_c": 70.0, "n2__GPU_d": 60.0}
        tell("avg gpu_utilization_percent", **cards)
        tell("max gpu_utilization_percent", **dict.fromkeys(cards, 100.0))
        tell("max gpu_memory_used_bytes", **dict.fromkeys(cards, 30.0 * GIB))
        tell("max gpu_memory_total_bytes", **dict.fromkeys(cards, 40.0 * GIB))
        tell("min gpu_energy_joules_total", **dict.fromkeys(cards, 1e6))
        tell("max gpu_energy_joules_total", **dict.fromkeys(cards, 1e6 + 720_000.0))
        self.store.parts["newest"] = {("", ""): self.attempt.attempt.ended.timestamp() - 10}  # type: ignore[union-attr]
        self.store.parts["busiest"] = {("", ""): 15.5}

    def meter(self) -> RunMeter:
        return RunMeter(self.store, self.accounting, self.clock)

    @property
    def kept(self) -> StoredSummaries:
        return StoredSummaries(self.objects)

    def service(self, **more: Any) -> ReportService:
        sharing = sharing_parts(InMemoryStateStore(self.clock))
        finder = AllocationFinder(self.scheduler, self.clock, sharing.shares)
        door = OutputAccess(finder, sharing.notes, self.clock)
        return ReportService(
            self.scheduler,
            door,
            self.meter(),
            self.kept,
            self.clock,
            more.get("limits"),
            TrainingRunFinder(self.clock, more.get("runs")),
        )
