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
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import httpx2
import msgspec
import uvicorn

from bench.figures import paired
from bench.measuring import HERE, answering, free_port, interleaved, metric_store
from bench.simulated_nodes import GPUS, LASTED_S, series_of
from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.base.clock import SystemClock
from lattice.domain.allocation import Allocation
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.server import bearer, composed

ROUNDS = 21
NODES = 256
_CASES: tuple[tuple[str, int, str, float], ...] = (
    ("4 nodes, summary", 1, "summary", 2.5),
    ("4 nodes, by node", 1, "per_node", 2.5),
    ("{nodes} nodes, summary", 2, "summary", 1.2),
    ("{nodes} nodes, by node", 2, "per_node", 1.3),
)


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


async def fill(url: str, nodes: int, began: float) -> int:
    """Everything the agents would have sent."""
    store = HttpMetricStore(HttpAddress(url=url))
    written = 0
    for job, count in zip(jobs(nodes, began), (4, nodes), strict=True):
        for number in range(1, count + 1):
            found = list(series_of(job, f"n{number}", began))
            await store.write(found)
            written += len(found)
    await store.aclose()
    async with httpx2.AsyncClient() as http:
        await http.get(f"{url}/internal/force_flush")
    return written


def serve(store: str, port: int, nodes: int, began: float) -> None:
    """The server, in a process of its own."""
    scheduler = InMemoryScheduler(SystemClock())
    scheduler.accounts = ACCOUNTS
    scheduler.allocations = jobs(nodes, began)

    async def run() -> None:
        faces = composed(scheduler, metrics=HttpMetricStore(HttpAddress(url=store)))
        config = uvicorn.Config(
            faces.rest, host=HERE, port=port, lifespan="off", log_config=None, access_log=False
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


def run(rounds: int, nodes: int) -> None:
    port = free_port()
    address = f"http://{HERE}:{port}"
    began = (datetime.now(UTC) - timedelta(seconds=LASTED_S)).timestamp()
    with metric_store() as store:
        written = asyncio.run(fill(store.url, nodes, began))
        print(f"{written} series are written", file=sys.stderr)
        words = ["--serve", store.url, str(port), str(nodes), str(began)]
        server = subprocess.Popen([sys.executable, "-m", "bench.top", *words])
        try:
            asyncio.run(answering(f"{address}/healthz"))
            asyncio.run(measure(address, store.url, rounds, nodes))
        finally:
            server.terminate()
            server.wait()


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
        run(options.rounds, options.nodes)


if __name__ == "__main__":
    main()
