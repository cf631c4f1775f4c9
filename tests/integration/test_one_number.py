"""One run of known truth: `top`, `report`, `compare` and `diag` show the same numbers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.base.clock import SystemClock
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import SHOWN, Shown, summed
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import MetricStore, SeriesPoints
from lattice.domain.node import Topology
from lattice.domain.promql import scope_of
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.compare.service.series import SeriesSource
from lattice.features.diag.model import Targets
from lattice.features.diag.service.case_builder import CaseBuilder, DataSources
from lattice.features.report.service.run_meter import RunMeter
from lattice.features.top.model import TopQuery
from lattice.features.top.service.top import TopService
from tests.contract.metric_stores import KINDS, place_of
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.presences import NoPresences
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
NODES, STEP_S, SAMPLES = 3, 30, 40
USUAL = ModeInForce(allocation="", mode=Mode.PROD, interval_s=float(STEP_S))
TRUTH = {
    Shown.CPU_UTILIZATION: 450.0,
    Shown.MEMORY_USED: 3e9,
    Shown.NETWORK_TX_BYTES: 300.0,
    Shown.GPU_UTILIZATION: 25.0,
    Shown.GPU_POWER_DRAW: 900.0,
    Shown.IO_LATENCY_P99: 9820.0,
}


def series_of(job: JobAttempt, now: float) -> list[SeriesPoints]:
    """On every node 1.5 cores and two cards; another source measures n1 as well."""
    found = []

    def add(node: int, name: str, of: Callable[[int], float], **labels: str) -> None:
        points = tuple((now - 2 - STEP_S * (SAMPLES - 1 - at), of(at)) for at in range(SAMPLES))
        for source in ("host_local_probe", "site_exporter")[: 2 if node == 1 else 1]:
            shared = {**dict(scope_of(job)), "vcluster": "batch", "source": source}
            named = {"__name__": PREFIX + name, "node": f"n{node}", **shared, **labels}
            found.append(SeriesPoints(named, points))

    for node in range(1, NODES + 1):
        add(node, "cpu_seconds_total", lambda at: 45.0 * at)
        add(node, "memory_used_bytes", lambda _: 1e9)
        add(node, "network_tx_bytes_total", lambda at: 3000.0 * at, scope="node")
        for card in range(2):
            uuid = {"gpu_uuid": f"GPU-{node}-{card}"}
            add(node, "gpu_utilization_percent", lambda _, card=card: 20.0 + 10 * card, **uuid)
            add(node, "gpu_power_watts", lambda _, card=card: 100.0 + 100 * card, **uuid)
        for edge, share in (("0.001", 50.0), ("0.01", 100.0), ("+Inf", 100.0)):
            add(node, "io_latency_seconds_bucket", lambda at, share=share: share * at, le=edge)
    return found


@dataclass
class Site:
    """Alice's job 1 runs, and everything of it is measured."""

    store: MetricStore
    scheduler: InMemoryScheduler
    clock: SystemClock

    @property
    def job(self) -> JobAttempt:
        (each,) = self.scheduler.allocations
        return JobAttempt(each, attempts_of(each)[0])

    async def top(self, duration_s: int | None = None) -> Mapping[Shown, float | None]:
        sharing = sharing_parts(InMemoryStateStore(self.clock))
        finder = AllocationFinder(self.scheduler, self.clock, sharing.shares)
        door = OutputAccess(finder, sharing.notes, self.clock)
        service = TopService(
            self.scheduler, door, self.store, InMemoryNodeLooks(), lambda _: USUAL, self.clock
        )
        answer = await service.read(ALICE, "1", TopQuery(duration_s=duration_s))
        return {each.metric: each.value for each in answer.rows[0].cells}

    async def report(self) -> Mapping[Shown, float | None]:
        found = await RunMeter(self.store, None, self.clock).whole(self.job)
        return {Shown(each.metric): each.mean[len(each.mean) // 2] for each in found.series}

    async def compare(self) -> Mapping[Shown, float | None]:
        found = await SeriesSource(self.store, None, self.clock).of(self.job, tuple(TRUTH))
        return {each: track.values[len(track.values) // 2] for each, track in found.tracks.items()}

    async def diag(self) -> Mapping[Shown, float | None]:
        senses = DataSources(
            facts=None, store=self.store, modes=lambda _: USUAL, presences=NoPresences()
        )
        case = await CaseBuilder(senses, self.clock, Targets()).case(self.job, Topology())
        assert case.no_traces == ""
        newest: dict[Shown, list[float]] = {}
        for (metric, _, _), points in case.traces.items():
            newest.setdefault(metric, []).append(points[-1][1])
        return {metric: summed(metric, values) for metric, values in newest.items()}


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    clock = SystemClock()
    now: datetime = clock.now()
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    began = now - timedelta(seconds=STEP_S * SAMPLES)
    facts = {"submitted": began, "nodes": f"n[1-{NODES}]", "node_count": NODES}
    scheduler.allocations = [allocation(1, "alice", "research", **facts)]
    async with place_of(request.param, tmp_path) as place:
        made = Site(place.store, scheduler, clock)
        await place.store.write(series_of(made.job, now.timestamp()))
        await place.settle()
        yield made


@pytest.mark.spec("TOP-1", "TOP-5", "COMPARE-1", "DIAG-1", "SRC-2")
async def test_all_show_the_same_numbers_of_one_run(site: Site) -> None:
    found = {
        "top": await site.top(),
        "top --duration": await site.top(duration_s=300),
        "report": await site.report(),
        "compare": await site.compare(),
        "diag": await site.diag(),
    }
    for name, values in found.items():
        expected = {each: TRUTH[each] for each in TRUTH if name != "diag" or each in values}
        shown = {each: values.get(each) for each in expected}
        assert shown == pytest.approx(expected, rel=0.02), name
    traced = {Shown.CPU_UTILIZATION, Shown.GPU_UTILIZATION, Shown.GPU_POWER_DRAW}
    assert set(found["diag"]) == traced
    assert set(found["report"]) == set(found["compare"]) == set(TRUTH)
    assert {SHOWN[each].factor for each in TRUTH} == {1.0, 100.0, 1e6}
