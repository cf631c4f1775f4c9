"""A job of a thousand nodes, watched by one person: what an event costs the server.

    just bench watch [--nodes 1000] [--interval 1] [--seconds 20]

Real are the server with its REST face, the link, the certificate and the stream of every node, and
the SDK that watches. Made up are Slurm, which says that the job runs, and what is measured: nodes
with eight GPUs each, many of them in one process. An event is what one node measured at one moment.
One JSON line a figure; processor time is that of the server's process alone, less what its idle
links cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import structlog
import uvicorn

from lattice.base.clock import SystemClock
from lattice.client.asynchronous import Client
from lattice.client.settings import Settings
from lattice.client.tokens import FixedToken
from lattice.domain.alert import Progress
from lattice.domain.attempts import AttemptFinder
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Sample, labelled
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import Session, StreamKind
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.telemetry.convert import sight_message
from lattice.features.telemetry.service.following import Means
from lattice.features.telemetry.service.looks import AgentLooks
from lattice.features.watch.model import WatchMeasured
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.server import composed, token
from tests.integration.link.site import Agent, Server, Site

JOB, OWNER = 42, "alice"
GPUS = 8
_PROCESSES = 2
_TELL_S = 0.25
_BEGAN = "began"


def names(count: int) -> list[str]:
    return [f"n{number:04}" for number in range(1, count + 1)]


def snapshot(began: float, at: float, interval_s: float) -> JobSnapshot:
    """What a node with eight GPUs tells."""
    ran_s = at - began
    job = {
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
    readings = [Sample(name, value, at) for name, value in job.items()]
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
    for number in range(GPUS):
        uuid = labelled(gpu_uuid=f"GPU-00000000-0000-0000-0000-{number:012}")
        readings += [Sample(name, value, at, labels=uuid) for name, value in card.items()]
    return JobSnapshot(JobIdentity("", JOB, 0, began), at, interval_s, tuple(readings))


class Crowd:
    """Nodes that all measure the same at the same moment: each tells it on a stream of its own."""

    def __init__(self, began: float, interval_s: float) -> None:
        self._began = began
        self._interval_s = interval_s
        self._payload = b""
        self._changed = asyncio.Condition()

    async def serve(self, session: Session, opening: bytes) -> None:
        assert pb.LookOpening.FromString(opening).job_id == JOB
        while True:
            async with self._changed:
                await self._changed.wait()
            await session.send(self._payload)

    async def run(self) -> None:
        before: JobSnapshot | None = None
        while True:
            await asyncio.sleep(self._interval_s - time.time() % self._interval_s)
            now = snapshot(self._began, time.time(), self._interval_s)
            progress = Progress(output=now.time, processor=now.time)
            sight = sight_message(self._began, before, now, (), progress)
            before = now
            self._payload = pb.LookTell(sight=sight).SerializeToString()
            async with self._changed:
                self._changed.notify_all()


async def serve(folder: Path, asked: argparse.Namespace) -> None:
    """The server; tells where it is, then how it is."""
    clock = SystemClock()
    site = Site(folder)
    server = Server(site, "r1")
    await server.start()
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    nodes = NodeSet(names(asked.nodes)).fold()
    scheduler.allocations.append(
        allocation(JOB, OWNER, "research", nodes=nodes, node_count=asked.nodes)
    )
    began = scheduler.allocations[0].started
    assert began is not None
    (folder / _BEGAN).write_text(str(began.timestamp()))
    mode = ModeInForce(allocation=str(JOB), mode=Mode.DEBUG, interval_s=asked.interval)
    looks = AgentLooks(
        Means(
            nodes=server.desk,
            signer=site.signer,
            clock=clock,
            whose=AttemptFinder(scheduler, clock).of,
            modes=lambda _: mode,
        )
    )
    faces = composed(scheduler, nodes=server.desk, signer=site.signer, looks=looks)
    door = uvicorn.Server(
        uvicorn.Config(faces.rest, port=server.people_port + 1, log_level="error", lifespan="off")
    )
    serving = asyncio.create_task(door.serve(), name="rest")
    while not door.started:
        await asyncio.sleep(0.01)
    _say({"agents": server.port, "people": server.people_port + 1})
    while not serving.done():
        await asyncio.sleep(_TELL_S)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _say(
            {
                "linked": len(server.hub.held),
                "cpu_s": used.ru_utime + used.ru_stime,
                "rss_kb": used.ru_maxrss,
                "at": time.monotonic(),
            }
        )


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    """A share of the nodes."""
    site = Site(folder)
    told = Crowd(float((folder / _BEGAN).read_text()), asked.interval)
    serves = {StreamKind.METRICS: told.serve}
    made = [
        Agent(site, name, [f"127.0.0.1:{asked.port}"], seed=number, serves=serves)
        for number, name in list(enumerate(names(asked.nodes)))[asked.share :: _PROCESSES]
    ]
    for agent in made:
        agent.start()
    await told.run()


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


class Part:
    """A process, and the newest it said."""

    def __init__(self, role: str, folder: str, asked: argparse.Namespace, *more: str) -> None:
        words = [sys.executable, "-m", "bench.watch", "--role", role, "--folder", folder]
        words += ["--nodes", str(asked.nodes), "--interval", str(asked.interval), *more]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.last: dict[str, Any] = {}
        self._said = threading.Event()
        threading.Thread(target=self._hear, name=role, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = json.loads(line)
            self._said.set()

    def first(self) -> dict[str, Any]:
        assert self._said.wait(60), "it says nothing"
        return self.last

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Tally:
    """What the person who watches got."""

    def __init__(self) -> None:
        self.known = 0
        self.clear()

    def clear(self) -> None:
        self.events = 0
        self.messages = 0
        self.late_s: list[float] = []

    def take(self, record: WatchMeasured) -> None:
        self.messages += 1
        self.events += len(record.nodes)
        self.known = max(self.known, record.measured)
        now = time.time()
        self.late_s += [now - each.time.timestamp() for each in record.nodes]


@asynccontextmanager
async def watching(port: int, tally: Tally, *, alerts_only: bool = False) -> AsyncIterator[None]:
    """One person, for as long as the context lasts."""
    settings = Settings(urls=(f"http://127.0.0.1:{port}",))
    owner = FixedToken(token(OWNER, preferred_username=OWNER))

    async def watch() -> None:
        async with Client(settings, tokens=owner, environment={}) as client:
            async for record in client.watch(str(JOB), alerts_only=alerts_only):
                if isinstance(record, WatchMeasured):
                    tally.take(record)

    task = asyncio.create_task(watch(), name="watch")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _cpu_share(server: Part, seconds: float) -> float:
    """Of a core, over a while."""
    begin = server.last
    await asyncio.sleep(seconds)
    end = server.last
    return float((end["cpu_s"] - begin["cpu_s"]) / (end["at"] - begin["at"]))


async def measure(server: Part, port: int, asked: argparse.Namespace) -> None:
    idle = await _cpu_share(server, asked.seconds)
    tally = Tally()
    async with watching(port, tally):
        deadline = time.monotonic() + 300
        while tally.known < asked.nodes:
            if time.monotonic() > deadline:
                raise AssertionError(f"only {tally.known} nodes were heard")
            await asyncio.sleep(0.5)
        # What came while all of them connected is left out.
        tally.clear()
        share = await _cpu_share(server, asked.seconds)
        events = tally.events
    sent = asked.nodes * asked.seconds / asked.interval
    quiet = Tally()
    async with watching(port, quiet, alerts_only=True):
        await asyncio.sleep(5)
        alone = await _cpu_share(server, asked.seconds)
    late_ms = [each * 1000 for each in tally.late_s] or [0.0, 0.0]
    facts = {"nodes": asked.nodes, "interval_s": asked.interval, "seconds": asked.seconds}
    for figure, value, unit in (
        ("cost an event", (share - idle) * asked.interval / asked.nodes * 1e6, "µs of processor"),
        ("cost an event, alerts only", (alone - idle) * asked.interval / asked.nodes * 1e6, "µs"),
        ("server while watched", share, "cores"),
        ("server with idle links", idle, "cores"),
        ("events told", events / sent, "of those measured"),
        ("events in a message", events / max(tally.messages, 1), "mean"),
        ("measured to told, median", median(late_ms), "ms"),
        ("measured to told, p99", quantiles(late_ms, n=100)[98], "ms"),
        ("server, most resident memory", server.last["rss_kb"] / 1024, "MiB"),
    ):
        _say({"bench": "watch", "figure": figure, "value": round(value, 3), "unit": unit} | facts)


def run(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = [Part("serve", folder, asked)]
        try:
            ports = parts[0].first()
            for share in range(_PROCESSES):
                more = ("--share", str(share), "--port", str(ports["agents"]))
                parts.append(Part("crowd", folder, asked, *more))
            deadline = time.monotonic() + 300
            while parts[0].last.get("linked", 0) < asked.nodes:
                if time.monotonic() > deadline:
                    raise AssertionError(f"not all are linked: {parts[0].last}")
                time.sleep(0.2)
            asyncio.run(measure(parts[0], ports["people"], asked))
        finally:
            for part in parts:
                part.end()


def _end_with_the_first() -> None:
    """A part ends when whoever started it does, however that was."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.watch", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    for hidden in ("--role", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--share", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    if asked.role is None:
        run(asked)
        return
    logging.disable(logging.WARNING)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    _end_with_the_first()
    folder = Path(asked.folder)
    asyncio.run(serve(folder, asked) if asked.role == "serve" else crowd(folder, asked))


if __name__ == "__main__":
    main()
