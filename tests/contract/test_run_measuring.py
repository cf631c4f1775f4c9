"""The questions of reports, asked of real metric stores: what was written is what is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown
from lattice.domain.metricstore import Point, SeriesPoints
from lattice.domain.promql import scope_of
from lattice.domain.runsummary import RunSummary, Use, Waste
from lattice.features.report.service.run_meter import RunMeter
from tests.contract.metric_stores import ENGINES, place_of
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock

LASTED_S, EVERY_S = 3600, 30
GIB = 2.0**30


def job(job_id: int, user: str, account: str) -> JobAttempt:
    ended = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)
    begun = ended - timedelta(seconds=LASTED_S)
    facts: dict[str, Any] = {
        "state": State.COMPLETED,
        "submitted": begun,
        "started": begun,
        "ended": ended,
        "nodes": "n[1-2]",
        "node_count": 2,
        "tasks": 2,
        "cpus": 8,
        "gpus": 2,
        "memory_bytes": int(16 * GIB),
        "time_limit_s": 7200,
    }
    each = allocation(job_id, user, account, **facts)
    return JobAttempt(each, attempts_of(each)[0])


def series_of(attempt: JobAttempt, name: str, node: str, values: Any, **more: str) -> SeriesPoints:
    assert attempt.attempt.started is not None
    begun = attempt.attempt.started.timestamp()
    points: list[Point] = [(begun + at, values(at)) for at in range(EVERY_S, LASTED_S + 1, EVERY_S)]
    labels = {
        "__name__": f"lattice_{name}",
        **dict(scope_of(attempt)),
        "node": node,
        "source": "host_local_probe",
        **more,
    }
    return SeriesPoints(labels, tuple(points))


def written(attempt: JobAttempt, times: float = 1.0) -> list[SeriesPoints]:
    """Half a core on n1 and one on n2; memory that rises to 3 GiB; one GPU busy, one not."""
    found = []
    for node, cores in (("n1", 0.5), ("n2", 1.0)):

        def cpu(at: int, cores: float = cores) -> float:
            return at * cores * times

        def memory(at: int, cores: float = cores) -> float:
            return (1 + 2 * cores * at / LASTED_S) * GIB * times

        found += [
            series_of(attempt, "cpu_seconds_total", node, cpu),
            series_of(attempt, "memory_used_bytes", node, memory),
            series_of(attempt, "io_write_bytes_total", node, lambda at: at * 1e6 * times),
            series_of(
                attempt,
                "network_tx_bytes_total",
                node,
                lambda at: 7e12 + at * 1000.0 * times,
                scope="node",
            ),
        ]
        busy = 80.0 if node == "n1" else 0.0
        card = {"gpu_uuid": f"GPU-{node}"}
        found += [
            series_of(attempt, "gpu_utilization_percent", node, lambda _, b=busy: b, **card),
            series_of(
                attempt, "gpu_energy_joules_total", node, lambda at: 5e9 + at * 100.0, **card
            ),
        ]
    return found


@pytest.fixture(params=ENGINES)
async def found(request: pytest.FixtureRequest, tmp_path: Path) -> RunSummary:
    """What is reported of alice's run; the store has another's with the same job's number too."""
    mine, others = job(42, "alice", "research"), job(42, "bob", "genomics")
    async with place_of(request.param, tmp_path) as place:
        await place.store.write(written(mine))
        await place.store.write(written(others, times=3.0))
        await place.settle()
        clock = ManualClock(datetime.now(UTC) + timedelta(seconds=2))
        return await RunMeter(place.store, None, clock).whole(mine)


@pytest.mark.spec("TOP-4", "TOP-5")
def test_every_figure_is_what_was_written(found: RunSummary) -> None:
    assert found.value(Use.CPU_SECONDS) == pytest.approx(1.5 * LASTED_S)
    assert found.value(Use.CPU_EFFICIENCY) == pytest.approx(100 * 1.5 / 8)
    assert found.value(Use.CPU_PEAK_CORES) == pytest.approx(1.5, rel=0.05)
    assert found.value(Use.MEMORY_PEAK) == pytest.approx(3 * GIB)
    assert found.value(Use.IO_WRITTEN) == pytest.approx(2e6 * LASTED_S)
    # From its first sample to its last, of a counter that was there before.
    grown_s = LASTED_S - EVERY_S
    assert found.value(Use.NETWORK_SENT) == pytest.approx(2 * 1000.0 * grown_s)
    assert found.value(Use.GPU_ENERGY) == pytest.approx(2 * 100.0 * grown_s)
    assert found.value(Use.GPU_UTILIZATION) == pytest.approx(40.0)
    assert found.value(Use.IO_READ) is None
    assert found.value(Waste.MEMORY_PER_NODE) == pytest.approx(5 * GIB)


@pytest.mark.spec("SRC-1", "TOP-5")
def test_how_much_was_seen(found: RunSummary) -> None:
    assert found.covered == pytest.approx(1.0, abs=0.02)
    assert str(found.origin.coverage) == "2/2 nodes"
    assert found.origin.resolution_s == pytest.approx(30.0, abs=0.5)
    assert found.origin.age_s == pytest.approx(602, abs=30)


@pytest.mark.spec("TOP-5")
def test_the_coarse_series(found: RunSummary) -> None:
    series = {each.metric: each for each in found.series}
    assert set(series) == {
        Shown.CPU_UTILIZATION,
        Shown.MEMORY_USED,
        Shown.IO_WRITE_BYTES,
        Shown.NETWORK_TX_BYTES,
        Shown.GPU_UTILIZATION,
    }
    cpu = series[Shown.CPU_UTILIZATION]
    assert len(cpu.mean) == LASTED_S // 60
    middle = len(cpu.mean) // 2
    assert cpu.mean[middle] == pytest.approx(150.0, rel=0.02)
    assert cpu.peak[middle] == pytest.approx(100.0, rel=0.02)
    gpu = series[Shown.GPU_UTILIZATION]
    assert (gpu.mean[middle], gpu.peak[middle]) == (pytest.approx(40.0), pytest.approx(80.0))
    memory = series[Shown.MEMORY_USED]
    assert memory.mean[-1] == pytest.approx(5 * GIB, rel=0.02)
    assert memory.peak[-1] == pytest.approx(3 * GIB, rel=0.02)
