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
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.figures import Figure, load, say
from bench.measuring import (
    HERE,
    TELL_S,
    Part,
    allow_many_files,
    end_with_the_first,
    most_resident_kb,
    processor_s,
    quiet,
)
from bench.simulated import LinkedServer, began_of, rest_served, run_as_server
from bench.simulated_nodes import linked_agents, node_names, snapshot
from lattice.base.process import MANY, settle
from lattice.client.async_client import Client
from lattice.client.settings import Settings
from lattice.client.tokens import FixedToken
from lattice.domain.alert import Alert, Progress
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import StreamKind
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.snapshots import SnapshotStore
from lattice.features.watch.model import WatchMeasured
from tests.fakes.cluster import allocation
from tests.fakes.server import composed, token

JOB, OWNER = 42, "alice"
_PROCESSES = 2
_HEARD_WITHIN_S = 120.0
_TOLD = 0.99


class StillJudge:
    """Finds nothing wrong, so that only measurements are sent."""

    firing: tuple[Alert, ...] = ()
    since: float | None = None
    progress = Progress()

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:  # noqa: ARG002
        self.since = self.since or snapshot.time
        self.progress = Progress(output=snapshot.time, processor=snapshot.time)
        return ()


class Crowd:
    """Nodes that all measure the same at the same moment: each tells it on a stream of its own."""

    def __init__(self, began: float, interval_s: float) -> None:
        self._began = began
        self._interval_s = interval_s
        self._store = SnapshotStore(StillJudge)
        never: Any = None  # what is asked for once is no part of this
        self.serve = MetricFeed(self._store, never)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s - time.time() % self._interval_s)
            self._store.measured(snapshot(JOB, self._began, time.time(), self._interval_s))


async def serve(folder: Path, asked: argparse.Namespace) -> None:
    """The server; tells where it is, then how it is."""
    nodes = NodeSet(node_names(asked.nodes)).fold()
    job = allocation(JOB, OWNER, "research", nodes=nodes, node_count=asked.nodes)
    server = LinkedServer(folder, [job], Mode.DEBUG, asked.interval)
    ports = {"agents": await server.start()}
    faces = composed(
        server.scheduler, nodes=server.desk, signer=server.site.signer, looks=server.looks
    )
    async with rest_served(faces.rest) as port:
        ports["people"] = port
        settle(MANY)
        while True:
            say(ports | {"linked": server.linked, "rss_kb": most_resident_kb()})
            await asyncio.sleep(TELL_S)


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    """A share of the nodes."""
    told = Crowd(began_of(folder), asked.interval)
    every = list(enumerate(node_names(asked.nodes)))
    serves = {StreamKind.METRICS: told.serve}
    async with linked_agents(folder, asked.port, dict(every[asked.share :: _PROCESSES]), serves):
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
    settings = Settings(urls=(f"http://{HERE}:{port}",))
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
    facts |= {"load": load()}
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
        figure.print(**facts)


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
    allow_many_files()
    if asked.role is None:
        run(asked)
        return
    quiet()
    end_with_the_first()
    folder = Path(asked.folder)
    if asked.role == "serve":
        run_as_server(serve(folder, asked))
    else:
        asyncio.run(crowd(folder, asked))


if __name__ == "__main__":
    main()
