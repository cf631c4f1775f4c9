"""What a real metric store makes of the composed queries, and of the narrowed ones."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.base.clock import SystemClock
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import MetricStore, SeriesPoints
from lattice.domain.promql import scope_of
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.prometheus.model import PrometheusQuestion
from lattice.features.prometheus.service.queries import PrometheusService
from lattice.features.top.model import TopAnswer, TopMode, TopQuery, TopRow
from lattice.features.top.service.top import TopService
from tests.contract.metric_stores import ENGINES, KINDS, place_of
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.node_looks import InMemoryNodeLooks
from tests.fakes.sharing import sharing_parts

ALICE = Actor(sub="sub-alice", user="alice")
NODES = 4
STEP_S = 30
SAMPLES = 21


@dataclass
class Site:
    """Alice's and Bob's jobs, each of them on the same nodes; node n4 is silent since 150 s."""

    service: TopService
    store: MetricStore

    async def look(self, name: str = "1", **query: Any) -> TopAnswer:
        return await self.service.read(ALICE, name, TopQuery(**query))


def value(row: TopRow, metric: Shown) -> float | None:
    return next(each.value for each in row.cells if each.metric is metric)


def series_of(job: JobAttempt, now: float, times: float) -> list[SeriesPoints]:
    found = []
    shared = {**dict(scope_of(job)), "vcluster": "batch", "source": "host_local_probe"}

    def add(node: int, name: str, of: Callable[[int], float], **labels: str) -> None:
        points = tuple(
            (now - 2 - STEP_S * (SAMPLES - 1 - at), of(at) * times)
            for at in range(SAMPLES)
            if node < NODES or at < SAMPLES - 5
        )
        named = {"__name__": PREFIX + name, "node": f"n{node}", **shared, **labels}
        found.append(SeriesPoints(named, points))

    for node in range(1, NODES + 1):
        add(node, "cpu_seconds_total", lambda at: 45.0 * at)
        add(node, "memory_used_bytes", lambda at: 1e9 + (1e9 if at == 10 else 0))
        add(node, "network_tx_bytes_total", lambda at: 3000.0 * at, scope="node")
        for card in range(2):
            uuid = {"gpu_uuid": f"GPU-{node}-{card}"}
            add(node, "gpu_utilization_percent", lambda _, card=card: 20.0 + 10 * card, **uuid)
        for edge, share in (("0.001", 50.0), ("0.01", 100.0), ("+Inf", 100.0)):
            add(node, "io_latency_seconds_bucket", lambda at, share=share: share * at, le=edge)
    return found


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    clock = SystemClock()
    now = clock.now()
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    began = now - timedelta(seconds=STEP_S * SAMPLES)
    facts: dict[str, Any] = {"submitted": began, "nodes": f"n[1-{NODES}]", "node_count": NODES}
    over = {"state": State.COMPLETED, "ended": now - timedelta(seconds=160)}
    scheduler.allocations = [
        allocation(1, "alice", "research", **facts),
        allocation(2, "bob", "genomics", **facts),
        allocation(3, "alice", "research", **facts, **over),
    ]
    sharing = sharing_parts(InMemoryStateStore(clock))
    door = OutputAccess(AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock)
    async with place_of(request.param, tmp_path) as place:
        for each, times in zip(scheduler.allocations, (1.0, 1000.0, 2.0), strict=True):
            job = JobAttempt(each, attempts_of(each)[0])
            await place.store.write(series_of(job, now.timestamp(), times))
        await place.settle()
        usual = ModeInForce(allocation="", mode=Mode.PROD, interval_s=float(STEP_S))
        looks = InMemoryNodeLooks()
        service = TopService(scheduler, door, place.store, looks, lambda _: usual, clock)
        yield Site(service, place.store)


@pytest.mark.spec("TOP-1", "TOP-4")
async def test_a_summary_is_of_the_fresh_nodes_of_this_job_alone(site: Site) -> None:
    answer = await site.look()
    (row,) = answer.rows
    assert answer.origin.via == "store"
    assert str(answer.origin.coverage) == "3/4 nodes"
    assert value(row, Shown.CPU_UTILIZATION) == pytest.approx(450.0, rel=0.02)
    assert value(row, Shown.MEMORY_USED) == 3e9
    assert value(row, Shown.GPU_UTILIZATION) == 25.0
    assert value(row, Shown.NETWORK_TX_BYTES) == pytest.approx(300.0, rel=0.02)
    latency_us = value(row, Shown.IO_LATENCY_P99)
    assert latency_us is not None
    assert 1000 < latency_us <= 10_000
    cells = {each.metric: each for each in row.cells}
    assert cells[Shown.NETWORK_TX_BYTES].scope == "node"
    # Of as many as were measured: a histogram is many series, and one measurement a node.
    assert {cells[each].of for each in (Shown.MEMORY_USED, Shown.IO_LATENCY_P99)} == {3}
    assert answer.origin.age_s == pytest.approx(2.0, abs=20.0)


@pytest.mark.spec("TOP-3", "SRC-2")
async def test_by_node_the_silent_one_has_nothing(site: Site) -> None:
    answer = await site.look(mode=TopMode.PER_NODE)
    whole, *rows = answer.rows
    assert [each.node for each in rows] == ["n1", "n2", "n3", "n4"]
    assert [value(each, Shown.MEMORY_USED) for each in rows] == [1e9, 1e9, 1e9, None]
    assert value(rows[3], Shown.CPU_UTILIZATION) is None
    assert value(whole, Shown.CPU_UTILIZATION) == pytest.approx(450.0, rel=0.02)
    assert rows[3].reason


@pytest.mark.spec("TOP-3")
async def test_by_gpu(site: Site) -> None:
    answer = await site.look(mode=TopMode.PER_GPU)
    found = {each.gpu_uuid: value(each, Shown.GPU_UTILIZATION) for each in answer.rows[1:]}
    assert found["GPU-1-0"] == 20.0
    assert found["GPU-3-1"] == 30.0
    assert "GPU-4-0" not in found
    assert value(answer.rows[0], Shown.GPU_UTILIZATION) == 25.0


@pytest.mark.spec("TOP-4")
async def test_what_is_over_has_means_and_peaks_of_its_own_life(site: Site) -> None:
    answer = await site.look("3")
    (row,) = answer.rows
    assert answer.duration_s == pytest.approx(STEP_S * SAMPLES - 160, abs=2)
    assert value(row, Shown.CPU_UTILIZATION) == pytest.approx(2 * NODES * 150.0, rel=0.01)
    assert value(row, Shown.NETWORK_TX_BYTES) == pytest.approx(2 * NODES * 100.0, rel=0.01)
    memory = next(each for each in row.cells if each.metric is Shown.MEMORY_USED)
    assert memory.peak == 2 * NODES * 2e9
    assert memory.value is not None
    assert 2 * NODES * 1e9 < memory.value < memory.peak


async def test_a_history_is_evenly_spaced_and_ends_now(site: Site) -> None:
    answer = await site.look(mode=TopMode.PER_NODE, history=True)
    memory = next(each for each in answer.rows[1].cells if each.metric is Shown.MEMORY_USED)
    times = [each.time for each in memory.history]
    assert len(times) >= SAMPLES - 2
    assert {round(b - a) for a, b in itertools.pairwise(times)} == {STEP_S}
    assert max(each.value for each in memory.history) == 2e9


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize("site", ENGINES, indirect=True)
async def test_no_query_gets_a_point_of_anothers_series(site: Site) -> None:
    service = PrometheusService(site.store, SystemClock())
    for query in (
        "lattice_memory_used_bytes",
        '{user=~".*"}',
        '{__name__=~".+", user!="alice"} or lattice_memory_used_bytes',
        'lattice_memory_used_bytes{alloc=~".*"}',
        "max_over_time(lattice_memory_used_bytes[5m:30s])",
        "last_over_time(lattice_memory_used_bytes[5m] offset 1s)",
        "-lattice_memory_used_bytes",
    ):
        answer = await service.query(ALICE, PrometheusQuestion(query=query))
        found = answer["data"]["result"]
        assert found, query
        assert {each["metric"]["user"] for each in found} == {"alice"}, query
    answer = await service.query(
        ALICE, PrometheusQuestion(query='lattice_memory_used_bytes{user="bob"}')
    )
    assert answer["data"]["result"] == []
    values = await service.label_values(ALICE, PrometheusQuestion(name="user"))
    assert values["data"] == ["alice"]
    scalar = await service.query(ALICE, PrometheusQuestion(query="1 + 1"))
    assert scalar["data"]["result"][1] == "2"
