"""What the samples of ten thousand nodes cost on their way through a server into the store.

    just bench ingest [--nodes 500] [--rate 5000] [--rounds 7] [--seconds 10]

Ten thousand nodes in prod send 60 samples each every 30 s: 333 messages a second, 20 000 samples.
Here fewer nodes send more often, each with its own certificate and TLS connection, to one server,
whose intake stamps and checks them against the jobs of a made-up Slurm and writes them to a real
VictoriaMetrics. They send rows on a stream, and as agents of the release before: batches, each a
call. Bare is the same from every node straight to the store, each message a remote write of its own
over plain HTTP. Rounds are interleaved.

Cores are processor seconds a second, brought from the rate that is sent to 20 000 samples/s in a
straight line: a server is one process with one busy core, and on two cores nodes and store need
theirs. What idle links cost is in `scale-link`. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from bench.figures import Figure, load, paired, say
from bench.ingest_nodes import JOB_NODES, OWNER, PROJECT, SERIES, Crowd, job_of, names
from bench.measuring import (
    TELL_S,
    Part,
    RunningStore,
    allow_many_files,
    end_with_the_first,
    free_port,
    metric_store,
    most_resident_kb,
    processor_s,
    quiet,
)
from bench.simulated import StillScheduler, run_as_server, serving
from lattice.adapters.http_store import HttpAddress
from lattice.adapters.metricstore.store import HttpMetricStore
from lattice.base.clock import SystemClock
from lattice.base.process import MANY, settle
from lattice.domain.metric import PREFIX
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.integration.link.site import Site

NODES, RATE, ROUNDS = 500, 5000, 7
FULL = 20_000
"""Samples a second of ten thousand nodes."""
_WAYS = ("rows", "batches", "straight")


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    made = Crowd(folder, asked)
    await made.connect()
    say({"round": 0})
    loop = asyncio.get_running_loop()
    number = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        send = {"rows": made.rows, "batches": made.batches}.get(line.strip(), made.straight)
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
            OWNER,
            PROJECT,
            submitted=start,
            started=start,
            nodes=",".join(nodes[place : place + JOB_NODES]),
            node_count=len(nodes[place : place + JOB_NODES]),
        )
        for place in range(0, len(nodes), JOB_NODES)
    ]
    store = HttpMetricStore(HttpAddress(url=asked.store))
    async with serving(folder, asked.port, scheduler, store):
        settle(MANY)
        while True:
            say({"rss_kb": most_resident_kb()})
            await asyncio.sleep(TELL_S)


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


def figures(
    ours: Sequence[Took], older: Sequence[Took], bare: Sequence[Took], rss_kb: int
) -> list[Figure]:
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
        paired(
            "ingest: servers for 20 000 samples/s in batches, against those in rows",
            "cores",
            of(older, "server"),
            server,
        ),
        paired(
            "ingest: the store behind servers, against the store written straight",
            "cores",
            behind,
            straight,
        ),
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
    asked.port = free_port()
    asked.began = float(int(time.time()) - 600)
    running: list[Part] = []
    with metric_store() as store:
        asked.store = store.url
        Site(Path(store.folder))  # its authority, before anyone asks
        try:
            for role in ("serve", "crowd"):
                running.append(Part("bench.ingest", *_words(role, store.folder, asked)))
                running[-1].until(bool, 60 + asked.nodes * 0.1)
            server, many = running
            measure(server, many, store, asked)
        finally:
            for part in reversed(running):
                part.end()


def measure(server: Part, many: Part, store: RunningStore, asked: argparse.Namespace) -> None:
    """Rounds of both ways, after one of each that is not counted."""
    played = Played(many, server, store.pid)
    within_s = asked.seconds * 6 + 30
    for way in _WAYS:
        played.one(way, within_s)
        asyncio.run(same_series(store.url, asked.nodes))
    rounds: dict[str, list[Took]] = {way: [] for way in _WAYS}
    for _ in range(max(asked.rounds, 7)):
        for way, took in rounds.items():
            took.append(played.one(way, within_s))
    ours, bare = rounds["rows"], rounds["straight"]
    facts = {"nodes": asked.nodes, "rate": asked.rate, "rounds": len(ours), "load": load()}
    for each in figures(ours, rounds["batches"], bare, server.last["rss_kb"]):
        each.print(**facts)


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
    allow_many_files()
    if asked.role is None:
        run(asked)
        return
    quiet()
    folder = Path(asked.folder)
    if asked.role == "crowd":
        asyncio.run(crowd(folder, asked))
    else:
        end_with_the_first()
        run_as_server(serve(folder, asked))


if __name__ == "__main__":
    main()
