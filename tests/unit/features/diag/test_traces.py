"""The traces of a job: what is asked, and what becomes of the answer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.domain.promql import scope_of
from lattice.features.diag.model import TRACE_S, TraceKey
from lattice.features.diag.service.case_builder import (
    PER_CARD_NODES,
    read_traces,
    trace_query,
    trace_step_s,
)
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_metrics import InMemoryMetricStore

EVERY_S, NOW = 30, 2e9
SOURCES = ("host_local_probe", "site_exporter")


def job(lasted_s: float = 3600.0) -> JobAttempt:
    began = datetime.fromtimestamp(NOW - lasted_s, UTC)
    made = allocation(1, "alice", "research", submitted=began, started=began)
    return JobAttempt(made, attempts_of(made)[0])


async def traced(
    attempt: JobAttempt, nodes: int, sources: tuple[str, ...] = SOURCES
) -> dict[TraceKey, tuple[Point, ...]]:
    """Of n1: 1.5 cores, and two cards with 20 % and 100 W, and 40 % and 300 W."""
    began = attempt.attempt.started
    assert began is not None
    moments = [began.timestamp() + at for at in range(0, int(NOW - began.timestamp()), EVERY_S)]
    store = InMemoryMetricStore()
    for source in sources:
        shared = {**dict(scope_of(attempt)), "node": "n1", "source": source}
        for name, labels, level in (
            ("gpu_utilization_percent", {"gpu_uuid": "GPU-a"}, 20.0),
            ("gpu_utilization_percent", {"gpu_uuid": "GPU-b"}, 40.0),
            ("gpu_power_watts", {"gpu_uuid": "GPU-a"}, 100.0),
            ("gpu_power_watts", {"gpu_uuid": "GPU-b"}, 300.0),
        ):
            points = tuple((at, level) for at in moments)
            named = {"__name__": f"lattice_{name}", **shared, **labels}
            await store.write([SeriesPoints(named, points)])
        risen = tuple((at, 1.5 * (at - moments[0])) for at in moments)
        named = {"__name__": "lattice_cpu_seconds_total", **shared}
        await store.write([SeriesPoints(named, risen)])
    found = await store.query_range(
        str(trace_query(attempt, nodes, EVERY_S, NOW)),
        start=NOW - TRACE_S,
        end=NOW,
        step_s=trace_step_s(EVERY_S),
    )
    return read_traces(found)


@pytest.mark.spec("DIAG-1", "SRC-2")
@pytest.mark.parametrize("sources", [SOURCES[:1], SOURCES], ids=["one", "two"])
async def test_two_sources_of_one_node_count_once(sources: tuple[str, ...]) -> None:
    found = await traced(job(), 1, sources)
    newest = {key: points[-1][1] for key, points in found.items()}
    assert newest == {
        (Shown.GPU_UTILIZATION, "n1", "GPU-a"): 20.0,
        (Shown.GPU_UTILIZATION, "n1", "GPU-b"): 40.0,
        (Shown.GPU_POWER_DRAW, "n1", "GPU-a"): 100.0,
        (Shown.GPU_POWER_DRAW, "n1", "GPU-b"): 300.0,
        (Shown.CPU_UTILIZATION, "n1", ""): pytest.approx(150.0),
    }
    assert {len(points) for points in found.values()} == {TRACE_S // EVERY_S + 1}


@pytest.mark.spec("DIAG-1")
async def test_on_many_nodes_a_trace_is_of_all_cards_of_a_node() -> None:
    found = await traced(job(), PER_CARD_NODES + 1)
    assert {key: points[-1][1] for key, points in found.items()} == {
        (Shown.GPU_UTILIZATION, "n1", ""): 30.0,
        (Shown.GPU_POWER_DRAW, "n1", ""): 400.0,
        (Shown.CPU_UTILIZATION, "n1", ""): pytest.approx(150.0),
    }


@pytest.mark.parametrize(("interval_s", "step_s"), [(1.0, 30), (30.0, 30), (45.5, 46)])
def test_points_are_half_a_minute_apart_or_an_interval(interval_s: float, step_s: int) -> None:
    assert trace_step_s(interval_s) == step_s


def test_a_rate_does_not_reach_back_before_the_job() -> None:
    assert "[125s]" in str(trace_query(job(), 1, EVERY_S, NOW))
    assert "[90s]" in str(trace_query(job(90.0), 1, EVERY_S, NOW))
