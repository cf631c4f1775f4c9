"""What the samples of ten thousand nodes cost on their way through a server into the store.

    just bench ingest [--nodes 500] [--rate 5000] [--rounds 7] [--seconds 10]

Ten thousand nodes in prod send 60 samples each every 30 s: 333 messages a second, 20 000 samples.
Here fewer nodes send more often, each with its own certificate and TLS connection, to one server,
whose intake stamps and checks them against the jobs of a made-up Slurm and writes them to a real
VictoriaMetrics. Bare is the same from every node straight to the store, each message a remote write
of its own over plain HTTP. Rounds are interleaved.

Cores are processor seconds a second, brought from the rate that is sent to 20 000 samples/s in a
straight line: a server is one process with one busy core, and on two cores nodes and store need
theirs. What idle links cost is in `scale-link`. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import structlog

from bench.logs_pipeline import paired
from bench.measuring import (
    HERE,
    Part,
    StillScheduler,
    end_with_the_first,
    processor_s,
    program,
    say,
    serving,
)
from bench.poll import Figure
from bench.top import answering
from lattice.adapters.metricstore.remotewrite import HEADERS, WriteEncoder
from lattice.adapters.metricstore.store import HttpMetricStore, StorePlace
from lattice.base.clock import SystemClock
from lattice.domain.latency import EDGES
from lattice.domain.metric import PREFIX, Labels, Provenance, labelled
from lattice.domain.metricstore import SeriesPoints
from lattice.features.link.node.dialling import Dialling
from lattice.features.telemetry.convert.batches import JobColumns, SeriesColumn, batch_message
from lattice.wire.v1 import link_pb2
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import MetricIntakeStub
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.integration.link.site import NodeKey, Site, free_port

NODES, RATE, ROUNDS = 500, 5000, 7
FULL = 20_000
"""Samples a second of ten thousand nodes."""
SERIES = 60
_JOB_NODES = 8
_GPUS = 4
_OWNER, _PROJECT, _TENANT, _VCLUSTER = "alice", "research", "physics", "batch"
_SOURCE = Provenance.HOST_LOCAL_PROBE
_OF_A_JOB = (
    "cpu_seconds_total",
    "cpu_cores",
    "memory_used_bytes",
    "memory_cache_bytes",
    "memory_limit_bytes",
    "memory_oom_kills_total",
    "processes",
    "threads",
    "io_read_bytes_total",
    "io_write_bytes_total",
)
_OF_A_NETWORK = ("tx_bytes", "rx_bytes", "packets", "errors")
_OF_A_GPU = (
    "gpu_utilization_percent",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_power_watts",
    "gpu_energy_joules_total",
    "gpu_temperature_celsius",
    "gpu_clock_sm_hertz",
)
_TELL_S = 0.25
_STORE_S = 30.0


def names(count: int) -> list[str]:
    return [f"n{number:05}" for number in range(1, count + 1)]


def job_of(place: int) -> int:
    """The job that runs on the node of this place."""
    return 1 + place // _JOB_NODES


def catalogue(node: str) -> list[tuple[str, Labels]]:
    """The series of a node with four GPUs."""
    found: list[tuple[str, Labels]] = [(name, ()) for name in _OF_A_JOB]
    found += [(f"network_{name}_total", labelled(scope="node")) for name in _OF_A_NETWORK]
    for card in range(_GPUS):
        uuid = labelled(gpu_uuid=f"GPU-{node}-0000-0000-00000000000{card}")
        found += [(name, uuid) for name in _OF_A_GPU]
    found += [("io_latency_seconds_bucket", labelled(le=edge)) for edge in EDGES]
    found.append(("tcp_retransmits_total", labelled(scope="job")))
    found.append(("pressure_seconds_total", labelled(resource="memory", share="some")))
    assert len(found) == SERIES, len(found)
    return found


class SimulatedNode:
    """Sends what it has measured, by either way."""

    def __init__(self, site: Site, name: str, place: int, began: float) -> None:
        self.dialling = Dialling(NodeKey(site.authority, name, timedelta(hours=2)))
        self._job = job_of(place)
        self._began = began
        self._series = catalogue(name)
        self._stamps = {
            "alloc": str(self._job),
            "attempt": "1",
            "node": name,
            "project": _PROJECT,
            "tenant": _TENANT,
            "user": _OWNER,
            "vcluster": _VCLUSTER,
            "source": _SOURCE.value,
        }
        self._dice = random.Random(place)
        self._last_ms = 0

    def _moment(self) -> tuple[int, int, float]:
        """A time that was not sent yet, how much later it was read, and a value."""
        self._last_ms = max(self._last_ms + 1, round(time.time() * 1000) - 100)
        return self._last_ms, self._dice.randrange(3, 40), float(self._dice.randrange(100))

    def batch(self) -> pb.SampleBatch:
        time_ms, late_ms, value = self._moment()
        columns = [
            SeriesColumn(metric, labels, _SOURCE, (value,), (late_ms,))
            for metric, labels in self._series
        ]
        return batch_message([JobColumns(self._job, self._began, (time_ms,), columns)], 0)

    def points(self) -> list[SeriesPoints]:
        """The same, as the server would stamp it."""
        time_ms, late_ms, value = self._moment()
        at = (time_ms + late_ms) / 1000
        return [
            SeriesPoints(
                {"__name__": PREFIX + metric, **dict(labels), **self._stamps}, ((at, value),)
            )
            for metric, labels in self._series
        ]


class Crowd:
    """All the nodes, in one process."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        site = Site(folder)
        self._nodes = [
            SimulatedNode(site, name, place, asked.began)
            for place, name in enumerate(names(asked.nodes))
        ]
        self._address = f"{HERE}:{asked.port}"
        self._rate = asked.rate / SERIES
        self._write = f"{asked.store}/api/v1/write"
        self._encoder = WriteEncoder()
        self._http = httpx2.AsyncClient(
            timeout=_STORE_S,
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=64),
            trust_env=False,
        )

    async def through(self, node: SimulatedNode) -> int:
        """By a server; how many samples it took."""
        batch = node.batch()
        async with node.dialling.lane(self._address, link_pb2.BULK) as channel:
            stub: Any = MetricIntakeStub(channel)
            told: pb.StoredSamples = await stub.StoreSamples(batch, timeout=_STORE_S)
        assert not told.refused, told.reason
        return int(told.stored)

    async def straight(self, node: SimulatedNode) -> int:
        body = self._encoder.encode(node.points())
        answer = await self._http.post(self._write, content=body, headers=HEADERS)
        assert answer.status_code < 300, answer.text
        return SERIES

    async def connect(self) -> None:
        """Every node once, few at a time: a handshake is no part of what is measured."""
        for begin in range(0, len(self._nodes), 20):
            await asyncio.gather(*(self.through(each) for each in self._nodes[begin : begin + 20]))

    async def play(
        self, send: Callable[[SimulatedNode], Awaitable[int]], seconds: float
    ) -> dict[str, Any]:
        """At the rate that is wanted, one node after the other, until all is answered."""
        begun = time.perf_counter()
        late_ms: list[float] = []
        stored = 0

        async def one(node: SimulatedNode) -> None:
            nonlocal stored
            asked = time.perf_counter()
            taken = await send(node)
            stored += taken  # after the wait: others add to it meanwhile
            late_ms.append((time.perf_counter() - asked) * 1000)

        async with asyncio.TaskGroup() as group:
            for number in range(round(self._rate * seconds)):
                wait_s = begun + number / self._rate - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(one(self._nodes[number % len(self._nodes)]), name="send")
        return {
            "samples": stored,
            "took_s": time.perf_counter() - begun,
            "median_ms": statistics.median(late_ms),
            "p99_ms": statistics.quantiles(late_ms, n=100)[98],
        }


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    made = Crowd(folder, asked)
    await made.connect()
    say({"round": 0})
    loop = asyncio.get_running_loop()
    number = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        send = made.through if line.strip() == "through" else made.straight
        number += 1
        say(await made.play(send, asked.seconds) | {"round": number})


async def serve(folder: Path, asked: argparse.Namespace) -> None:
    """The server, in a process of its own."""
    start = datetime.fromtimestamp(asked.began, UTC)
    nodes = names(asked.nodes)
    scheduler = StillScheduler(SystemClock())
    scheduler.accounts = ACCOUNTS
    scheduler.allocations = [
        allocation(
            job_of(place),
            _OWNER,
            _PROJECT,
            submitted=start,
            started=start,
            nodes=",".join(nodes[place : place + _JOB_NODES]),
            node_count=len(nodes[place : place + _JOB_NODES]),
        )
        for place in range(0, len(nodes), _JOB_NODES)
    ]
    store = HttpMetricStore(StorePlace(endpoint=asked.store))
    async with serving(folder, asked.port, scheduler, store):
        while True:
            used = resource.getrusage(resource.RUSAGE_SELF)
            say({"rss_kb": used.ru_maxrss})
            await asyncio.sleep(_TELL_S)


@dataclass(frozen=True, slots=True)
class Took:
    """One round of one way: cores at the full rate, and how long an answer took."""

    server: float
    store: float
    rate: float
    median_ms: float
    p99_ms: float


class Played:
    """The rounds, and the processes whose time is counted."""

    def __init__(self, crowd: Part, server: Part, store: int) -> None:
        self._crowd, self._server, self._store = crowd, server, store
        self._number = 0

    def one(self, way: str, within_s: float) -> Took:
        self._number += 1
        number = self._number
        pids = self._server.process.pid, self._store
        before = [processor_s(each) for each in pids]
        self._crowd.tell(way)
        told = self._crowd.until(lambda said: said.get("round") == number, within_s)
        # What the store does with it soon after, it does because of it.
        time.sleep(1.0)
        used = [processor_s(each) - was for each, was in zip(pids, before, strict=True)]
        full = FULL / told["samples"]
        return Took(
            server=used[0] * full,
            store=used[1] * full,
            rate=told["samples"] / told["took_s"],
            median_ms=told["median_ms"],
            p99_ms=told["p99_ms"],
        )


async def same_series(store: str, nodes: int) -> None:
    """Both ways write the very same series, or they can't be compared."""
    form = {"query": f'count({{__name__=~"{PREFIX}.+"}})', "nocache": "1"}
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        deadline = time.monotonic() + 40
        while True:
            told = (await http.post(f"{store}/api/v1/query", data=form)).json()["data"]["result"]
            count = int(told[0]["value"][1]) if told else 0
            if count == nodes * SERIES:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{count} series instead of {nodes * SERIES}")
            await asyncio.sleep(1)


def figures(ours: Sequence[Took], bare: Sequence[Took], rss_kb: int) -> list[Figure]:
    def of(rounds: Sequence[Took], name: str) -> list[float]:
        return [getattr(each, name) for each in rounds]

    straight = of(bare, "store")
    server, behind = of(ours, "server"), of(ours, "store")
    both = [one + other for one, other in zip(server, behind, strict=True)]
    reached = statistics.median(of(ours, "rate"))
    return [
        paired(
            "ingest: servers for 20 000 samples/s, against the store written straight",
            "cores",
            server,
            straight,
        ),
        paired("ingest: the store behind servers, likewise", "cores", behind, straight),
        paired("ingest: servers and store together, likewise", "cores", both, straight),
        Figure(
            name="ingest: samples a second that one core of a server takes",
            value=statistics.median(FULL / each for each in server),
            unit="samples/s",
        ),
        Figure(
            name="ingest: samples a second that were sent and stored",
            value=reached,
            unit="samples/s",
            bare=statistics.median(of(bare, "rate")),
        ),
        paired(
            "ingest: from a node's call to stored, median",
            "ms",
            of(ours, "median_ms"),
            of(bare, "median_ms"),
        ),
        paired(
            "ingest: from a node's call to stored, p99",
            "ms",
            of(ours, "p99_ms"),
            of(bare, "p99_ms"),
        ),
        Figure(name="ingest: server, most resident memory", value=rss_kb / 1024, unit="MiB"),
    ]


def run(asked: argparse.Namespace) -> None:
    path = program("victoria-metrics", "victoria-metrics")
    port = free_port()
    asked.store = f"http://{HERE}:{port}"
    asked.port = free_port()
    asked.began = float(int(time.time()) - 600)
    running: list[Part] = []
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        Site(Path(folder))  # its authority, before anyone asks
        store = subprocess.Popen(
            [path, f"-storageDataPath={folder}/data", f"-httpListenAddr={HERE}:{port}"],
            stdout=log,
            stderr=log,
        )
        try:
            asyncio.run(answering(f"{asked.store}/health"))
            for role in ("serve", "crowd"):
                running.append(Part("bench.ingest", *_words(role, folder, asked)))
                running[-1].until(bool, 60 + asked.nodes * 0.1)
            server, many = running
            played = Played(many, server, store.pid)
            within_s = asked.seconds * 6 + 30
            for way in ("through", "straight"):
                played.one(way, within_s)
            asyncio.run(same_series(asked.store, asked.nodes))
            ours, bare = [], []
            for _ in range(max(asked.rounds, 7)):
                ours.append(played.one("through", within_s))
                bare.append(played.one("straight", within_s))
            facts = {
                "nodes": asked.nodes,
                "rate": asked.rate,
                "rounds": len(ours),
                "load": round(os.getloadavg()[0], 2),
            }
            for each in figures(ours, bare, server.last["rss_kb"]):
                say(asdict(each) | facts)
        finally:
            for part in reversed(running):
                part.end()
            store.terminate()
            store.wait()


def _words(role: str, folder: str, asked: argparse.Namespace) -> list[str]:
    words = ["--role", role, "--folder", folder]
    for name in ("nodes", "rate", "seconds", "store", "port", "began"):
        words += [f"--{name}", str(getattr(asked, name))]
    return words


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.ingest", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help="connections, each a node's")
    parser.add_argument("--rate", type=int, default=RATE, help="samples a second that are sent")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 7")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round, each way")
    for hidden in ("--role", "--folder", "--store"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    if asked.role is None:
        run(asked)
        return
    logging.disable(logging.WARNING)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    folder = Path(asked.folder)
    if asked.role == "crowd":
        asyncio.run(crowd(folder, asked))
    else:
        end_with_the_first()
        asyncio.run(serve(folder, asked))


if __name__ == "__main__":
    main()
