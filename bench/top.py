"""What a look costs over the wire, against the bare metric store asked the same.

    just bench top [--rounds N] [--nodes N]

A real VictoriaMetrics holds an hour of two jobs, one on 4 nodes and one on 256, as agents would
have sent it: about 60 series a node, every 30 s. Then looks go to a server over HTTP, through its
guard, its policy and its service; and the composed query goes straight to the store, over HTTP by
the same client, and is decoded. One JSON line a figure, rounds interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import uvicorn

from bench.logs_pipeline import paired
from lattice.adapters.metricstore.store import HttpMetricStore, StorePlace
from lattice.base.clock import SystemClock
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.metric import PREFIX
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.promql import scope_of
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.server import bearer, composed

ROUNDS = 21
NODES = 256
STEP_S = 30
LASTED_S = 3600
_AHEAD_S = 1200
"""What is written beyond now, so that there is a newest sample while it is measured."""
GPUS = 4
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
_CASES: tuple[tuple[str, int, str, float], ...] = (
    ("4 nodes, summary", 1, "summary", 2.5),
    ("4 nodes, by node", 1, "per_node", 2.5),
    ("{nodes} nodes, summary", 2, "summary", 1.2),
    ("{nodes} nodes, by node", 2, "per_node", 1.3),
)
_HERE = "127.0.0.1"


def jobs(nodes: int, began: float) -> list[Allocation]:
    """The same in the server and in what fills the store."""
    start = datetime.fromtimestamp(began, UTC)
    return [
        allocation(
            number,
            "alice",
            "research",
            submitted=start,
            started=start,
            nodes=f"n[1-{count}]",
            node_count=count,
            gpus=count * GPUS,
        )
        for number, count in ((1, 4), (2, nodes))
    ]


def series_of(job: Allocation, node: str, began: float) -> Iterator[SeriesPoints]:
    """An hour of one node."""
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


async def fill(store: HttpMetricStore, nodes: int, began: float) -> int:
    """Everything the agents would have sent."""
    written = 0
    for job, count in zip(jobs(nodes, began), (4, nodes), strict=True):
        for number in range(1, count + 1):
            found = list(series_of(job, f"n{number}", began))
            await store.write(found)
            written += len(found)
    return written


def serve(store: str, port: int, nodes: int, began: float) -> None:
    """The server, in a process of its own."""
    scheduler = InMemoryScheduler(SystemClock())
    scheduler.accounts = ACCOUNTS
    scheduler.allocations = jobs(nodes, began)

    async def run() -> None:
        faces = composed(scheduler, metrics=HttpMetricStore(StorePlace(endpoint=store)))
        config = uvicorn.Config(
            faces.rest, host=_HERE, port=port, lifespan="off", log_config=None, access_log=False
        )
        await uvicorn.Server(config).serve()

    asyncio.run(run())


async def measure(address: str, store: str, rounds: int, nodes: int) -> None:
    """Every case, interleaved with the bare store."""
    headers = bearer("sub-alice", preferred_username="alice")
    async with httpx2.AsyncClient(timeout=30) as http:
        for name, job, mode, goal in _CASES:
            url = f"{address}/v1/allocations/{job}/metrics?mode={mode}"
            told = (await http.get(f"{url}&explain=true", headers=headers)).json()
            assert told["origin"]["via"] == "store", told["origin"]
            assert told["origin"]["coverage"]["measured"] == told["node_count"], told["origin"]
            assert all(
                each["value"] is not None for row in told["rows"] for each in row["cells"]
            ), "every figure is there"
            (query,) = told["queries"]

            async def look(url: str = url) -> None:
                answer = await http.get(url, headers=headers)
                assert answer.status_code == 200
                msgspec.json.decode(answer.content)

            async def bare(query: str = query) -> None:
                form = {"query": query, "time": f"{time.time():.3f}", "nocache": "1"}
                answer = await http.post(f"{store}/api/v1/query", data=form)
                assert answer.status_code == 200
                msgspec.json.decode(answer.content)

            ours, theirs = await interleaved(rounds, look, bare)
            label = f"top, {name.format(nodes=nodes)}"
            paired(label, "ms", ours, theirs, at_most=goal).print()


async def interleaved(rounds: int, *acts: Callable[[], Awaitable[None]]) -> Sequence[list[float]]:
    """Milliseconds of each, round by round; one that is not counted first."""
    found: list[list[float]] = [[] for _ in acts]
    for number in range(rounds + 1):
        for took, act in zip(found, acts, strict=True):
            begun = time.perf_counter()
            await act()
            if number:
                took.append((time.perf_counter() - begun) * 1000)
    return found


async def answering(url: str) -> None:
    async with asyncio.timeout(30), httpx2.AsyncClient() as http:
        while True:
            try:
                await http.get(url)
            except httpx2.HTTPError:
                await asyncio.sleep(0.05)
            else:
                return


def free_port() -> int:
    with socket.create_server((_HERE, 0)) as door:
        return int(door.getsockname()[1])


async def run(rounds: int, nodes: int) -> None:
    program = shutil.which("victoria-metrics")
    if program is None:
        raise SystemExit("victoria-metrics is not installed")
    ports = free_port(), free_port()
    store, address = (f"http://{_HERE}:{port}" for port in ports)
    began = (datetime.now(UTC) - timedelta(seconds=LASTED_S)).timestamp()
    running: list[subprocess.Popen[Any]] = []
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        try:
            running.append(
                subprocess.Popen(
                    [
                        program,
                        f"-storageDataPath={folder}/data",
                        f"-httpListenAddr={_HERE}:{ports[0]}",
                    ],
                    stdout=log,
                    stderr=log,
                )
            )
            await answering(f"{store}/health")
            client = HttpMetricStore(StorePlace(endpoint=store))
            written = await fill(client, nodes, began)
            await client.aclose()
            async with httpx2.AsyncClient() as http:
                await http.get(f"{store}/internal/force_flush")
            print(f"{written} series are written", file=sys.stderr)
            words = ["--serve", store, str(ports[1]), str(nodes), str(began)]
            running.append(subprocess.Popen([sys.executable, "-m", "bench.top", *words]))
            await answering(f"{address}/healthz")
            await measure(address, store, rounds, nodes)
        finally:
            for each in reversed(running):
                each.terminate()
                each.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        store, port, nodes, began = options.serve
        serve(store, int(port), int(nodes), float(began))
    else:
        asyncio.run(run(options.rounds, options.nodes))


if __name__ == "__main__":
    main()
