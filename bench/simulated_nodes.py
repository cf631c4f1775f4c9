"""Nodes for benches, many in one process: what they measure is made up, what they send is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measuring import HERE
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import PREFIX, Sample, labelled
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.promql import scope_of
from lattice.domain.stream import Serve, StreamKind
from tests.integration.link.site import Agent, Site

STEP_S = 30
"""How often an agent measures that nobody told otherwise."""
LASTED_S = 3600
GPUS = 4
"""Of a node whose past is written; one that tells what it measures now has twice as many."""
_AHEAD_S = 1200
"""What is written beyond now, so that there is a newest sample while it is measured."""
_GAUGES = ("memory_used_bytes", "memory_cache_bytes", "memory_limit_bytes", "processes", "threads")
_COUNTERS = (
    "cpu_seconds_total",
    "io_read_bytes_total",
    "io_write_bytes_total",
    "memory_oom_kills_total",
)
_OF_A_GPU = (
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_clock_sm_hertz",
    "gpu_sm_occupancy_percent",
)
_EDGES = ("1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10", "+Inf")


def node_names(count: int, digits: int = 4) -> list[str]:
    return [f"n{number:0{digits}}" for number in range(1, count + 1)]


@asynccontextmanager
async def linked_agents(
    folder: Path, port: int, nodes: Mapping[int, str], serves: Mapping[StreamKind, Serve]
) -> AsyncIterator[None]:
    """Linked to the server on that port, each with a certificate of its own; keys are seeds."""
    site = Site(folder)
    agents = [
        Agent(site, name, [f"{HERE}:{port}"], seed=seed, serves=serves)
        for seed, name in nodes.items()
    ]
    for agent in agents:
        agent.start()
    try:
        yield
    finally:
        await asyncio.gather(*(agent.stop() for agent in agents), return_exceptions=True)


def snapshot(job: int, began: float, at: float, interval_s: float) -> JobSnapshot:
    """What a node with eight GPUs tells."""
    ran_s = at - began
    of_job = {
        "cpu_seconds_total": ran_s * 60,
        "cpu_cores": 64.0,
        "memory_used_bytes": 3e11,
        "memory_cache_bytes": 2e11,
        "memory_limit_bytes": 1e12,
        "memory_oom_kills_total": 0.0,
        "processes": 40.0,
        "threads": 900.0,
        "io_read_bytes_total": ran_s * 1e8,
        "io_write_bytes_total": ran_s * 5e6,
    }
    readings = [Sample(name, value, at) for name, value in of_job.items()]
    for name in ("tx_bytes", "rx_bytes", "packets", "errors"):
        scope = labelled(scope="node")
        readings.append(Sample(f"network_{name}_total", ran_s * 1e6, at, labels=scope))
    for edge in ("0.0001", "0.001", "0.01", "0.1", "+Inf"):
        le = labelled(le=edge)
        readings.append(Sample("io_latency_seconds_bucket", ran_s * 1000, at, labels=le))
    card = {
        "gpu_utilization_percent": 97.0,
        "gpu_memory_used_bytes": 7e10,
        "gpu_memory_total_bytes": 8e10,
        "gpu_power_watts": 640.0,
        "gpu_power_limit_watts": 700.0,
        "gpu_energy_joules_total": ran_s * 640,
        "gpu_temperature_celsius": 61.0,
        "gpu_clock_sm_hertz": 1.9e9,
        "gpu_clock_memory_hertz": 2.6e9,
        "gpu_ecc_corrected_total": 0.0,
        "gpu_ecc_uncorrected_total": 0.0,
        "gpu_nvlink_bytes_total": ran_s * 1e10,
    }
    for number in range(2 * GPUS):
        uuid = labelled(gpu_uuid=f"GPU-00000000-0000-0000-0000-{number:012}")
        readings += [Sample(name, value, at, labels=uuid) for name, value in card.items()]
    return JobSnapshot(JobIdentity("", job, 0, began), at, interval_s, tuple(readings))


def series_of(job: Allocation, node: str, began: float) -> Iterator[SeriesPoints]:
    """An hour of one node, as the store has it."""
    attempt = JobAttempt(job, attempts_of(job)[0])
    labels = {**dict(scope_of(attempt)), "vcluster": "batch", "node": node}
    labels["source"] = "host_local_probe"
    times = [began + STEP_S * number for number in range(1, (LASTED_S + _AHEAD_S) // STEP_S)]

    def one(name: str, slope: float, base: float, **more: str) -> SeriesPoints:
        points = tuple((at, base + slope * (at - began)) for at in times)
        return SeriesPoints({"__name__": PREFIX + name, **labels, **more}, points)

    yield from (one(name, 0.0, 1e9) for name in _GAUGES)
    yield from (one(name, 12.5, 0.0) for name in _COUNTERS)
    for name in ("network_tx_bytes_total", "network_rx_bytes_total"):
        yield one(name, 1e6, 0.0, scope="node")
    for place, edge in enumerate(_EDGES):
        yield one("io_latency_seconds_bucket", 10.0 * (place + 1), 0.0, le=edge)
    for card in range(GPUS):
        yield from (one(name, 0.0, 50.0, gpu_uuid=f"GPU-{node}-{card}") for name in _OF_A_GPU)
