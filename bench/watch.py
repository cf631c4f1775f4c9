"""A job of a thousand nodes, watched by one person: what an event costs the server.

    just bench watch [--nodes 1000] [--interval 10] [--moments 3]

Real are the server with its REST face, the link, the certificate and the stream of every node, and
the SDK that watches. Made up are Slurm, which says that the job runs, and what is measured: nodes
with eight GPUs each, many of them in one process. An event is what one node measured at one moment,
and all nodes measure at the same. One JSON line a figure; processor time is that of the server's
process alone, less what its idle links cost.

Between two moments the server has to be done with the first, or it is the length of a queue that
is measured: 10 s are enough for 1 000 nodes on two cores, which nodes and watcher share with it.
With `--interval 1` it shows what becomes of a job in debug that is too large for one server.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

import structlog
import uvicorn

from bench.measuring import Part, end_with_the_first, processor_s, say
from bench.poll import Figure
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
from lattice.features.telemetry.convert.looks import sight_message
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
_HEARD_WITHIN_S = 120.0
_TOLD = 0.99


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
        if self._payload:
            await session.send(self._payload)
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
    ports = {"agents": server.port, "people": server.people_port + 1}
    while not serving.done():
        used = resource.getrusage(resource.RUSAGE_SELF)
        say(ports | {"linked": len(server.hub.held), "rss_kb": used.ru_maxrss})
        await asyncio.sleep(_TELL_S)


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


async def halfway(interval_s: float) -> None:
    """Until the middle between two moments."""
    await asyncio.sleep((interval_s / 2 - time.time()) % interval_s)


async def _used_s(server: Part, seconds: float) -> float:
    """Processor seconds of the server over a while."""
    begin_s = processor_s(server.process.pid)
    await asyncio.sleep(seconds)
    return processor_s(server.process.pid) - begin_s


async def measure(server: Part, port: int, asked: argparse.Namespace) -> None:
    idle_s = await _used_s(server, asked.interval) * asked.moments
    tally, begun = Tally(), time.monotonic()
    async with watching(port, tally):
        while tally.known < asked.nodes:
            if time.monotonic() > begun + _HEARD_WITHIN_S:
                raise SystemExit(f"only {tally.known} nodes were heard in {_HEARD_WITHIN_S:g} s")
            await asyncio.sleep(0.2)
        heard_s = time.monotonic() - begun
        # What came while all of them connected is left out.
        await halfway(asked.interval)
        tally.clear()
        watched_s = await _used_s(server, asked.moments * asked.interval)
    quiet = Tally()
    async with watching(port, quiet, alerts_only=True):
        await asyncio.sleep(min(5.0, asked.interval))
        await halfway(asked.interval)
        alone_s = await _used_s(server, asked.moments * asked.interval)
    _tell(asked, tally, (idle_s, watched_s, alone_s), heard_s, server.last["rss_kb"])


def _tell(
    asked: argparse.Namespace,
    tally: Tally,
    used: tuple[float, float, float],
    heard_s: float,
    rss_kb: int,
) -> None:
    idle_s, watched_s, alone_s = used
    measured, took_s = asked.nodes * asked.moments, asked.moments * asked.interval
    late_ms = [each * 1000 for each in tally.late_s] or [0.0, 0.0]
    told = tally.events / measured
    facts = {"nodes": asked.nodes, "interval_s": asked.interval, "moments": asked.moments}
    facts |= {"load": round(os.getloadavg()[0], 2)}
    for figure in (
        Figure(name="watch: events told", value=told, unit="of those measured", goal=1.0,
               ok=told >= _TOLD),
        Figure(name="watch: cost an event", value=(watched_s - idle_s) / measured * 1e6,
               unit="µs of processor"),
        Figure(name="watch: cost an event, alerts only",
               value=(alone_s - idle_s) / measured * 1e6, unit="µs of processor"),
        Figure(name="watch: server while watched", value=watched_s / took_s, unit="cores",
               bare=idle_s / took_s, ratio=watched_s / idle_s),
        Figure(name="watch: all nodes heard after", value=heard_s, unit="s"),
        Figure(name="watch: events in a message",
               value=tally.events / max(tally.messages, 1), unit="mean"),
        Figure(name="watch: measured to told, median", value=median(late_ms), unit="ms"),
        Figure(name="watch: measured to told, p99", value=quantiles(late_ms, n=100)[98],
               unit="ms"),
        Figure(name="watch: server, most resident memory", value=rss_kb / 1024, unit="MiB"),
    ):  # fmt: skip
        say(asdict(figure) | facts)


def run(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ("--folder", folder, "--nodes", str(asked.nodes), "--interval", str(asked.interval))
        parts = [Part("bench.watch", "--role", "serve", *words)]
        try:
            ports = parts[0].until(bool, 60)
            for share in range(_PROCESSES):
                more = ("--share", str(share), "--port", str(ports["agents"]))
                parts.append(Part("bench.watch", "--role", "crowd", *words, *more))
            parts[0].until(lambda told: told["linked"] >= asked.nodes, _HEARD_WITHIN_S)
            asyncio.run(measure(parts[0], ports["people"], asked))
        finally:
            for part in parts:
                part.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.watch", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between moments")
    parser.add_argument("--moments", type=int, default=3, help="over how many it is measured")
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
    end_with_the_first()
    folder = Path(asked.folder)
    asyncio.run(serve(folder, asked) if asked.role == "serve" else crowd(folder, asked))


if __name__ == "__main__":
    main()
