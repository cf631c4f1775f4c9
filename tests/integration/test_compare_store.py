"""What a real metric store makes of the questions of a comparison."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.access.actor import Actor
from lattice.base.clock import SystemClock
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.promql import scope_of
from lattice.domain.statistics.sureness import Sureness
from lattice.features.compare.model import CompareQuery, Comparison, MetricComparison
from lattice.features.compare.service.compare import CompareService
from lattice.features.compare.wiring import compare_service
from tests.contract.metric_stores import ENGINES, place_of
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.foundation import in_memory_foundation
from tests.fakes.in_memory_scheduler import InMemoryScheduler

ALICE = Actor(sub="sub-alice", user="alice")
STEP_S, SAMPLES, NODES = 30, 120, 2
DAY_S, DAYS_NODES = 86_400, 3
MINUTE_S = 60
SLOWER_AT = 60
"""The sample from which on the second run does less."""


def day_of(job: JobAttempt, begun: float) -> list[SeriesPoints]:
    """As the first of an hour, for a day, on other nodes and every minute."""
    draw = random.Random(job.allocation.id)
    shared = {**dict(scope_of(job)), "vcluster": "batch", "source": "host_local_probe"}
    moments = [begun + 7 + 60 * at for at in range(DAY_S // 60)]
    return [
        SeriesPoints(
            {
                "__name__": f"{PREFIX}gpu_utilization_percent",
                "node": f"m{node}",
                "gpu_uuid": f"GPU-m{node}",
                **shared,
            },
            tuple((at, 90 + draw.uniform(-1, 1)) for at in moments),
        )
        for node in range(1, DAYS_NODES + 1)
    ]


def minute_of(job: JobAttempt, begun: float, used: float) -> list[SeriesPoints]:
    """Every second, from soon after the beginning."""
    labels = {**dict(scope_of(job)), "vcluster": "batch", "source": "host_local_probe"}
    moments = [begun + 3 + at for at in range(MINUTE_S - 4)]
    courses: dict[str, Callable[[float], float]] = {
        "cpu_seconds_total": lambda at: at - begun,
        "memory_used_bytes": lambda _: used,
    }
    return [
        SeriesPoints(
            {"__name__": PREFIX + name, "node": "n1", **labels},
            tuple((at, course(at)) for at in moments),
        )
        for name, course in courses.items()
    ]


def series_of(job: JobAttempt, begun: float, *, slower: bool) -> list[SeriesPoints]:
    """Every 30 s on two nodes; a slower one does a fifth less in its second half."""
    draw = random.Random(job.allocation.id)
    shared = {**dict(scope_of(job)), "vcluster": "batch", "source": "host_local_probe"}
    found = []

    def pace(at: int) -> float:
        return 0.8 if slower and at >= SLOWER_AT else 1.0

    def add(node: int, name: str, of: Callable[[int], float], **labels: str) -> None:
        named = {"__name__": PREFIX + name, "node": f"n{node}", **shared, **labels}
        # A little after the beginning, as agents measure.
        points = tuple((begun + 3 + STEP_S * at, of(at)) for at in range(SAMPLES))
        found.append(SeriesPoints(named, points))

    def counter(a_second: float) -> Callable[[int], float]:
        total, totals = 0.0, []
        for at in range(SAMPLES):
            totals.append(total)
            total += STEP_S * a_second * pace(at) * draw.uniform(0.97, 1.03)
        return lambda at: totals[at]

    for node in range(1, NODES + 1):
        add(node, "cpu_seconds_total", counter(2.0))
        add(node, "memory_used_bytes", lambda _: 1e9)
        for card in range(2):
            uuid = {"gpu_uuid": f"GPU-{node}-{card}"}
            add(
                node,
                "gpu_utilization_percent",
                lambda at: 90 * pace(at) + draw.uniform(-1, 1),
                **uuid,
            )
        for edge, share in (("0.001", 50.0), ("0.01", 100.0), ("+Inf", 100.0)):
            add(node, "io_latency_seconds_bucket", lambda at, share=share: share * at, le=edge)
    return found


@pytest.fixture(params=ENGINES)
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CompareService]:
    clock = SystemClock()
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    began = clock.now() - timedelta(seconds=STEP_S * SAMPLES + 60)
    facts: dict[str, Any] = {"submitted": began, "nodes": "n[1-2]", "node_count": NODES}
    over = {"state": State.COMPLETED, "ended": began + timedelta(seconds=STEP_S * SAMPLES)}
    scheduler.allocations = [
        allocation(1, "alice", "research", **facts, **over),
        allocation(2, "alice", "research", **facts),
        allocation(3, "bob", "genomics", **facts),
    ]
    day_began = clock.now() - timedelta(seconds=DAY_S + 300)
    a_day = allocation(
        4,
        "alice",
        "research",
        submitted=day_began,
        ended=day_began + timedelta(seconds=DAY_S),
        state=State.COMPLETED,
        nodes=f"m[1-{DAYS_NODES}]",
        node_count=DAYS_NODES,
    )
    minute_began = clock.now() - timedelta(seconds=3 * MINUTE_S)
    minutes = [
        allocation(
            number,
            "alice",
            "research",
            submitted=minute_began,
            ended=minute_began + timedelta(seconds=MINUTE_S),
            state=State.COMPLETED,
            nodes="n1",
        )
        for number in (5, 6)
    ]
    async with place_of(request.param, tmp_path) as place:
        await place.store.write(
            day_of(JobAttempt(a_day, attempts_of(a_day)[0]), day_began.timestamp())
        )
        for each in scheduler.allocations:
            job = JobAttempt(each, attempts_of(each)[0])
            written = series_of(job, began.timestamp(), slower=each.job_id != 1)
            await place.store.write(written)
        for each in minutes:
            job = JobAttempt(each, attempts_of(each)[0])
            used = each.job_id * 1e8
            await place.store.write(minute_of(job, minute_began.timestamp(), used))
        await place.settle()
        scheduler.allocations += [a_day, *minutes]
        yield compare_service(in_memory_foundation(clock, scheduler=scheduler, metrics=place.store))


def row(answer: Comparison, metric: Shown) -> MetricComparison:
    return next(each for each in answer.metrics if each.metric is metric)


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_run_that_slows_down_is_dated_and_measured(service: CompareService) -> None:
    answer = await service.compare(ALICE, CompareQuery(ids=("1", "2")))
    assert [each.origin.via for each in answer.runs] == ["store", "store"]
    assert [str(each.origin.coverage) for each in answer.runs] == ["2/2 nodes"] * 2
    for metric in (Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION):
        (one,) = row(answer, metric).differences
        assert one.parting is not None, metric
        assert abs(one.parting.at_s - SLOWER_AT * STEP_S) <= 2 * STEP_S, metric
        assert one.parting.since is not None
        assert one.parting.since.percent == pytest.approx(-20.0, abs=2.0), metric
    assert row(answer, Shown.GPU_UTILIZATION).levels[0].mean == pytest.approx(90, abs=0.5)
    assert row(answer, Shown.CPU_UTILIZATION).levels[0].mean == pytest.approx(400, rel=0.02)


@pytest.mark.spec("COMPARE-2")
async def test_what_is_alike_is_not_said_to_differ(service: CompareService) -> None:
    answer = await service.compare(ALICE, CompareQuery(ids=("1", "2")))
    memory = row(answer, Shown.MEMORY_USED)
    assert [each.mean for each in memory.levels] == [2e9, 2e9]
    assert memory.differences[0].sureness is Sureness.NONE_FOUND
    latency = row(answer, Shown.IO_LATENCY_P99)
    assert latency.levels[0].mean == pytest.approx(9820, rel=0.01)
    assert {each.metric for each in answer.metrics}.isdisjoint({Shown.GPU_POWER_DRAW})


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_day_against_an_hour_on_other_nodes_at_another_pace(
    service: CompareService,
) -> None:
    """Each from its own start; they part where the shorter one slows down, in its own time."""
    answer = await service.compare(ALICE, CompareQuery(ids=("4", "2")))
    assert [str(each.origin.coverage) for each in answer.runs] == ["3/3 nodes", "2/2 nodes"]
    told = row(answer, Shown.GPU_UTILIZATION)
    assert told.levels[0].mean == pytest.approx(90, abs=0.5)
    (one,) = told.differences
    assert one.parting is not None
    assert abs(one.parting.at_s - SLOWER_AT * STEP_S) <= 2 * 60
    assert one.parting.since is not None
    assert one.parting.since.percent == pytest.approx(-20.0, abs=2.0)


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_a_day_and_an_hour_that_do_the_same(service: CompareService) -> None:
    answer = await service.compare(ALICE, CompareQuery(ids=("4", "1")))
    (one,) = row(answer, Shown.GPU_UTILIZATION).differences
    assert one.sureness is Sureness.NONE_FOUND
    assert one.parting is None


@pytest.mark.spec("COMPARE-1")
async def test_short_runs_that_are_over_are_compared_as_closely_as_they_were_measured(
    service: CompareService,
) -> None:
    """Which mode was in force is forgotten by then."""
    answer = await service.compare(ALICE, CompareQuery(ids=("5", "6")))
    assert [each.origin.resolution_s for each in answer.runs] == [1.0, 1.0]
    told = row(answer, Shown.MEMORY_USED)
    assert all(each.samples is not None and each.samples > MINUTE_S / 2 for each in told.levels)
    assert told.differences[0].change is not None
    assert told.differences[0].change.percent == pytest.approx(20.0)
    assert row(answer, Shown.CPU_UTILIZATION).levels[0].mean == pytest.approx(100, rel=0.02)
