"""What a page of `lattice diag` takes, beside what the bare questions to its sources take.

    just bench diag [--rounds N] [--nodes N]

Real are the server with its REST face, the link, certificate and streams of every node, and the
metric store (VictoriaMetrics, with ten minutes and more of every node). Made up are Slurm, which
says that two jobs run, one on 3 nodes and one on all, and what the nodes tell: 8 GPUs each, many
nodes in one process. Bare are the same questions to nodes and store, asked at once in the server's
process, of which nothing is made: no caller, no rules, no page. One JSON line a figure, rounds
interleaved; `ok` is whether the slower half of the pages is within the goal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

import httpx2
import msgspec

from bench.figures import Figure, say
from bench.measuring import (
    HERE,
    TELL_S,
    Part,
    allow_many_files,
    end_with_the_first,
    metric_store,
    quiet,
)
from bench.simulated import LinkedServer, began_of, rest_served
from bench.simulated_nodes import STEP_S, linked_agents, node_names, series_of, snapshot
from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.base.process import MANY, settle
from lattice.domain.alert import Progress
from lattice.domain.allocation import Allocation
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.jobfacts import NodeFacts, TransportFact
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import Session, StreamKind
from lattice.domain.telemetry import Mode
from lattice.features.diag.convert import facts_message, facts_opening_of
from lattice.features.diag.service.case_builder import trace_query, trace_step_s
from lattice.features.diag.service.node_queries import NodeQueries
from lattice.features.telemetry.convert.snapshots import node_snapshot_message, node_snapshot_of
from lattice.wire.v1 import telemetry_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.server import bearer, composed
from tests.unit.features.diag.wards import link, mount, task

ROUNDS = 15
NODES = 256
SMALL, LARGE = 42, 43
FEW = 3
GOALS_MS = {SMALL: 1000.0, LARGE: 3000.0}
_WITHIN_S = 6.0
_LINKED_WITHIN_S = 300.0
_ANSWERED_WITHIN_S = 30.0


def jobs(nodes: int) -> list[Allocation]:
    """An hour old, both."""
    return [
        allocation(
            number,
            "alice",
            "research",
            nodes=NodeSet(node_names(count)).fold(),
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

    def _look(self, job: int) -> bytes:
        now = time.time()
        before, latest = (snapshot(job, self._began, at, STEP_S) for at in (now - STEP_S, now))
        progress = Progress(output=now, processor=now, storage=now, network=now)
        sight = node_snapshot_message(self._began, before, latest, (), progress)
        return pb.LookTell(sight=sight).SerializeToString()

    async def facts(self, session: Session, opening: bytes) -> None:
        asked, now = facts_opening_of(opening), time.time()
        await session.send(self._look(asked.job_id))
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
        await session.send(facts_message(self._began, told), last=True)


class Bare:
    """The sources of a page, asked at once in the server's process."""

    def __init__(self, server: LinkedServer, asking: NodeQueries, store: HttpMetricStore) -> None:
        self._server, self._asking, self._store = server, asking, store

    async def ask(self, number: int) -> float:
        """Milliseconds."""
        job = next(each for each in self._server.scheduler.allocations if each.job_id == number)
        attempt = JobAttempt(job, attempts_of(job)[0])
        now = self._server.clock.now().timestamp()
        begun = time.perf_counter()
        (told, silent), past = await asyncio.gather(
            self._asking.check(attempt, within_s=_WITHIN_S),
            self._store.query_range(
                str(trace_query(attempt, job.node_count, STEP_S, now)),
                start=now - 600,
                end=now,
                step_s=trace_step_s(STEP_S),
            ),
        )
        took_ms = (time.perf_counter() - begun) * 1000
        assert len(told) == job.node_count, silent[:1]
        assert all(each.snapshot for each in told)
        assert past
        return took_ms


async def serve(folder: Path, asked: argparse.Namespace) -> None:
    """The server; on a line of its standard input it asks bare, and tells how long that took."""
    server = LinkedServer(folder, jobs(asked.nodes), Mode.PROD, STEP_S)
    ports = {"agents": await server.start()}
    store = HttpMetricStore(HttpAddress(url=asked.store))
    for job in server.scheduler.allocations:
        for node in NodeSet.parse(job.nodes):
            await store.write(list(series_of(job, node, server.began)))
    asking = NodeQueries(server.desk, server.site.signer, server.whose, node_snapshot_of)
    faces = composed(
        server.scheduler,
        nodes=server.desk,
        signer=server.site.signer,
        looks=server.looks,
        metrics=store,
        facts=asking,
    )
    settle(MANY)
    async with rest_served(faces.rest) as port:
        ports["people"] = port
        await answered(Bare(server, asking, store).ask, lambda: ports | {"linked": server.linked})


async def answered(
    ask: Callable[[int], Awaitable[float]], how_it_is: Callable[[], dict[str, int]]
) -> None:
    """How the server is, again and again, and what the last question took."""
    asks: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(asks.put_nowait, int(line))
        os._exit(0)

    threading.Thread(target=hear, name="asks", daemon=True).start()
    count, took_ms = 0, 0.0
    while True:
        say(how_it_is() | {"asked": count, "bare_ms": took_ms})
        try:
            number = await asyncio.wait_for(asks.get(), TELL_S)
        except TimeoutError:
            continue
        took_ms = await ask(number)
        count += 1


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    """All the nodes."""
    told = Crowd(began_of(folder))
    serves = {StreamKind.FACTS: told.facts}
    nodes = dict(enumerate(node_names(asked.nodes)))
    async with linked_agents(folder, asked.port, nodes, serves):
        await asyncio.Event().wait()


def bare_ms(server: Part, job: int) -> float:
    count = server.last["asked"] + 1
    server.tell(str(job))
    told = server.until(lambda said: said["asked"] == count, _ANSWERED_WITHIN_S)
    return float(told["bare_ms"])


async def measure(server: Part, port: int, asked: argparse.Namespace) -> None:
    headers = bearer("sub-alice", preferred_username="alice")
    async with httpx2.AsyncClient(timeout=30) as http:
        for job, count in ((SMALL, FEW), (LARGE, asked.nodes)):
            url = f"http://{HERE}:{port}/v1/allocations/{job}/diagnostics"
            pages, bare = [], []
            for number in range(asked.rounds + 1):
                begun = time.perf_counter()
                answer = await http.get(url, headers=headers)
                page = msgspec.json.decode(answer.content)
                took_ms = (time.perf_counter() - begun) * 1000
                assert answer.status_code == 200, answer.text
                whole = {"measured": count, "nodes": count}
                assert not number or page["covered"] == whole, (page["covered"], page["words"])
                lone_ms = bare_ms(server, job)
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
    with metric_store() as store:
        words = ("--folder", store.folder, "--nodes", str(asked.nodes), "--store", store.url)
        parts = [Part("bench.diag", "--role", "serve", *words)]
        try:
            ports = parts[0].until(bool, _LINKED_WITHIN_S)
            more = ("--port", str(ports["agents"]))
            parts.append(Part("bench.diag", "--role", "crowd", *words, *more))
            parts[0].until(lambda told: told["linked"] >= asked.nodes, _LINKED_WITHIN_S)
            asyncio.run(measure(parts[0], ports["people"], asked))
        finally:
            for part in parts:
                part.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.diag", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nodes", type=int, default=NODES)
    for hidden in ("--role", "--folder", "--store"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    allow_many_files()
    if asked.role is None:
        run(asked)
        return
    quiet()
    folder = Path(asked.folder)
    if asked.role == "serve":
        asyncio.run(serve(folder, asked))
    else:
        end_with_the_first()
        asyncio.run(crowd(folder, asked))


if __name__ == "__main__":
    main()
