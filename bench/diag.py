"""What a page of `lattice diag` takes, beside what the bare questions to its sources take.

    just bench diag [--rounds N] [--nodes N]

Real are the server with its REST face, the link, certificate and streams of every node, and the
metric store (VictoriaMetrics, with ten minutes and more of every node). Made up are Slurm, which
says that two jobs run, one on 3 nodes and one on all, and what the nodes tell: 8 GPUs each, many
nodes in one process. Bare are the same three questions, asked at once in the server's process, of
which nothing is made: no caller, no rules, no page. One JSON line a figure, rounds interleaved;
`ok` is whether the slower half of the pages is within the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx2
import msgspec
import structlog
import uvicorn

from bench.poll import Figure
from bench.top import answering, free_port, series_of
from bench.watch import snapshot
from lattice.adapters.metricstore.store import HttpMetricStore, StorePlace
from lattice.base.clock import SystemClock
from lattice.domain.alert import Progress
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import AttemptFinder, JobAttempt, attempts_of
from lattice.domain.jobfacts import NodeFacts, TransportFact
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import Session, StreamKind
from lattice.domain.telemetry import Mode, ModeInForce
from lattice.features.diag.convert.facts import facts_opening_of, facts_tell
from lattice.features.diag.service import traces
from lattice.features.diag.service.asking import NodeAsking
from lattice.features.telemetry.convert import sight_message
from lattice.features.telemetry.service.following import Means
from lattice.features.telemetry.service.looks import AgentLooks
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.server import bearer, composed
from tests.integration.link.site import Agent, Server, Site
from tests.unit.features.diag.wards import link, mount, task

ROUNDS = 15
NODES = 256
SMALL, LARGE = 42, 43
FEW = 3
GOALS_MS = {SMALL: 1000.0, LARGE: 3000.0}
STEP_S = 30.0
_WITHIN_S = 3.0
_HERE = "127.0.0.1"
_BEGAN = "began"


def names(count: int) -> list[str]:
    return [f"n{number:04}" for number in range(1, count + 1)]


def jobs(nodes: int) -> list[Allocation]:
    """An hour old, both."""
    return [
        allocation(
            number,
            "alice",
            "research",
            nodes=NodeSet(names(count)).fold(),
            node_count=count,
            gpus=count * 8,
            tasks=count * 8,
        )
        for number, count in ((SMALL, FEW), (LARGE, nodes))
    ]


class Crowd:
    """Nodes that all tell the same of themselves, at once."""

    def __init__(self, began: float) -> None:
        self._began = began

    async def look(self, session: Session, opening: bytes) -> None:
        job_id, now = pb.LookOpening.FromString(opening).job_id, time.time()
        identity = JobIdentity("", job_id, 0, self._began)
        looks = [
            replace(snapshot(self._began, at, STEP_S), identity=identity)
            for at in (now - STEP_S, now)
        ]
        progress = Progress(output=now, processor=now, storage=now, network=now)
        sight = sight_message(self._began, looks[0], looks[1], (), progress)
        await session.send(pb.LookTell(sight=sight).SerializeToString(), last=True)

    async def facts(self, session: Session, opening: bytes) -> None:
        facts_opening_of(opening)
        now = time.time()
        told = NodeFacts(
            node="",
            time=now,
            links=(link(), link("eno1", speed_bits=1e9, best_speed_bits=1e9)),
            transport=TransportFact(seconds=3600, sent_segments=1e7, retransmits=10.0),
            mounts=(mount(), mount("/home"), mount("/data")),
            tasks=tuple(task(rank, started=self._began) for rank in range(8)),
            clock_ahead_s=0.001,
            last_output=now,
        )
        await session.send(facts_tell(self._began, told), last=True)


async def serve(folder: Path, asked: argparse.Namespace) -> None:
    """The server; on a line of its standard input it asks bare, and tells how long that took."""
    clock = SystemClock()
    site = Site(folder)
    server = Server(site, "r1")
    await server.start()
    scheduler = InMemoryScheduler(clock)
    scheduler.accounts = ACCOUNTS
    scheduler.allocations = jobs(asked.nodes)
    began = scheduler.allocations[0].started
    assert began is not None
    whose = AttemptFinder(scheduler, clock).of
    store = HttpMetricStore(StorePlace(endpoint=asked.store))
    for job in scheduler.allocations:
        for node in NodeSet.parse(job.nodes):
            await store.write(list(series_of(job, node, began.timestamp())))
    (folder / _BEGAN).write_text(str(began.timestamp()))
    mode = ModeInForce(allocation="", mode=Mode.PROD, interval_s=STEP_S)
    looks = AgentLooks(
        Means(nodes=server.desk, signer=site.signer, clock=clock, whose=whose, modes=lambda _: mode)
    )
    asking = NodeAsking(server.desk, site.signer, whose)
    faces = composed(
        scheduler, nodes=server.desk, signer=site.signer, looks=looks, metrics=store, facts=asking
    )
    port = free_port()
    door = uvicorn.Server(
        uvicorn.Config(faces.rest, host=_HERE, port=port, log_level="error", lifespan="off")
    )
    serving = asyncio.create_task(door.serve(), name="rest")
    while not door.started:
        await asyncio.sleep(0.01)

    async def bare(number: int) -> None:
        job = next(each for each in scheduler.allocations if each.job_id == number)
        attempt, now = JobAttempt(job, attempts_of(job)[0]), clock.now().timestamp()
        begun = time.perf_counter()
        looked, told, past = await asyncio.gather(
            looks.look(attempt, within_s=_WITHIN_S),
            asking.facts(attempt, within_s=_WITHIN_S),
            store.query_range(
                traces.question(attempt, job.node_count, STEP_S),
                start=now - 600,
                end=now,
                step_s=traces.step_s(STEP_S),
            ),
        )
        took_ms = (time.perf_counter() - begun) * 1000
        assert len(looked[0]) == len(told[0]) == job.node_count, (looked[1][:1], told[1][:1])
        assert past
        _say({"bare_ms": took_ms})

    asks: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(asks.put_nowait, int(line))
        os._exit(0)

    threading.Thread(target=hear, name="asks", daemon=True).start()
    _say({"agents": server.port, "people": port})
    while not serving.done():
        try:
            number = await asyncio.wait_for(asks.get(), 0.25)
        except TimeoutError:
            _say({"linked": len(server.hub.held)})
        else:
            await bare(number)


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    threading.Thread(target=_end_with_the_first, name="end", daemon=True).start()
    site = Site(folder)
    told = Crowd(float((folder / _BEGAN).read_text()))
    serves = {StreamKind.METRICS: told.look, StreamKind.FACTS: told.facts}
    for number, name in enumerate(names(asked.nodes)):
        Agent(site, name, [f"{_HERE}:{asked.port}"], seed=number, serves=serves).start()
    await asyncio.Event().wait()


def _end_with_the_first() -> None:
    """A part ends when whoever started it does, however that was."""
    sys.stdin.read()
    os._exit(0)


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


class Part:
    """A process, and what it says."""

    def __init__(self, role: str, folder: str, asked: argparse.Namespace, *more: str) -> None:
        words = [sys.executable, "-m", "bench.diag", "--role", role, "--folder", folder]
        words += ["--nodes", str(asked.nodes), *more]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def told(self, key: str) -> Any:
        """The next that it says of this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            if key in found:
                return found[key]
        raise AssertionError(f"it ended without a word about {key}")

    def bare_ms(self, job: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{job}\n")
        self.process.stdin.flush()
        return float(self.told("bare_ms"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


async def measure(server: Part, port: int, asked: argparse.Namespace) -> None:
    headers = bearer("sub-alice", preferred_username="alice")
    async with httpx2.AsyncClient(timeout=30) as http:
        for job, count in ((SMALL, FEW), (LARGE, asked.nodes)):
            url = f"http://{_HERE}:{port}/v1/allocations/{job}/diagnostics"
            pages, bare = [], []
            for number in range(asked.rounds + 1):
                begun = time.perf_counter()
                answer = await http.get(url, headers=headers)
                page = msgspec.json.decode(answer.content)
                took_ms = (time.perf_counter() - begun) * 1000
                assert answer.status_code == 200, answer.text
                assert page["covered"] == {"measured": count, "nodes": count}, page["words"]
                lone_ms = server.bare_ms(job)
                if number:
                    pages.append(took_ms)
                    bare.append(lone_ms)
            low, middle, high = quantiles(pages, n=4)
            Figure(
                name=f"diag, a page of {count} nodes",
                value=middle,
                unit="ms",
                low=low,
                high=high,
                bare=median(bare),
                ratio=median(one / other for one, other in zip(pages, bare, strict=True)),
                goal=GOALS_MS[job],
                ok=high <= GOALS_MS[job],
            ).print()


def run(asked: argparse.Namespace) -> None:
    program = shutil.which("victoria-metrics")
    if program is None:
        raise SystemExit("victoria-metrics is not installed")
    port = free_port()
    store = f"http://{_HERE}:{port}"
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("wb") as log:
        words = [program, f"-storageDataPath={folder}/data", f"-httpListenAddr={_HERE}:{port}"]
        engine = subprocess.Popen(words, stdout=log, stderr=log)
        parts: list[Part] = []
        try:
            asyncio.run(answering(f"{store}/health"))
            parts.append(Part("serve", folder, asked, "--store", store))
            agents = parts[0].process
            assert agents.stdout is not None
            ports = json.loads(agents.stdout.readline())
            parts.append(Part("crowd", folder, asked, "--port", str(ports["agents"])))
            deadline = time.monotonic() + 300
            while parts[0].told("linked") < asked.nodes:
                if time.monotonic() > deadline:
                    raise AssertionError("not all nodes are linked")
            asyncio.run(measure(parts[0], ports["people"], asked))
        finally:
            for part in parts:
                part.end()
            engine.terminate()
            engine.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.diag", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nodes", type=int, default=NODES)
    for hidden in ("--role", "--folder", "--store"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    if asked.role is None:
        run(asked)
        return
    logging.disable(logging.WARNING)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    folder = Path(asked.folder)
    asyncio.run(serve(folder, asked) if asked.role == "serve" else crowd(folder, asked))


if __name__ == "__main__":
    main()
