"""What one line of a large job costs the server for each of its followers.

    python -m bench.logs_rounds [--nodes 1000] [--viewers 20] [--lines 40]

Made up are the nodes and their connections, which are queues in this process. Real is everything
from there to the record: the feed of each node, the merged view and the rounds of each follower.
One line is written at a time. One JSON line a figure; processor time is that of this process, less
what it uses while no line is written.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from bench.figures import Figure, load
from lattice.access.actor import Actor
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.stream import Session, StreamQuestion
from lattice.features.logs.model import LogBlock, LogQuery
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_service import LogService
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.wire.v1 import logs_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.echoing_nodes import QueueCarrier, answered_by
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.sharing import sharing_parts

_GOAL_US = 300.0
_LINE = b"a line of about sixty bytes, as a training job writes it\n"
_ALICE = Actor(sub="sub-alice", user="alice")
_PAUSE_S = 0.07
"""Longer than lines of several nodes settle: each line has a round of its own.

72 lines take 5 s, in which each connection pings once.
"""


class Nodes:
    """The port `NodeStreams`: nodes in this process, each with one stream of the job."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._texts: dict[str, asyncio.Queue[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Those that are followed."""
        return list(self._texts)

    def linked_to(self, node: str) -> str:
        return node

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        texts = self._texts[question.node] = asyncio.Queue()

        async def serve(session: Session, opening: bytes) -> None:  # noqa: ARG001 - the port
            offset = line = 0
            await session.send(pb.FeedTell(began=self._began).SerializeToString())
            report = pb.FeedStreams(streams=[pb.FeedStream(kind="stdout", source="batch")])
            await session.send(pb.FeedTell(streams=report).SerializeToString())
            while True:
                text, now_ms = await texts.get(), int(time.time() * 1000)
                piece = pb.FeedPiece(offset=offset, line=line, time_ms=now_ms, text=text)
                pushed = pb.FeedText(kind="stdout", source="batch", pieces=[piece])
                await session.send(pb.FeedTell(pushed=pushed).SerializeToString())
                offset, line = offset + len(text), line + 1

        async with answered_by(serve, question.opening) as carrier:
            yield carrier

    def write(self, node: str, text: bytes) -> None:
        self._texts[node].put_nowait(text)


class Crowd:
    """A service with one job, and its nodes."""

    def __init__(self, nodes: int) -> None:
        clock = SystemClock()
        scheduler = InMemoryScheduler(clock)
        began = clock.now() - timedelta(minutes=10)
        names = f"n[1-{nodes}]"
        job = allocation(
            7, "alice", "research", submitted=began, started=began, nodes=names, node_count=nodes
        )
        scheduler.allocations.append(job)
        scheduler.read()
        self.nodes = Nodes(began.timestamp())
        signer = GrantSigner(SigningKey.generate(), clock)
        feeds = Feeds(self.nodes, signer, clock, AttemptFinder(scheduler, clock).of)
        sharing = sharing_parts(InMemoryStateStore(clock))
        access = OutputAccess(
            AllocationFinder(scheduler, clock, sharing.shares), sharing.notes, clock
        )
        archive = Archive(InMemoryObjectStore(clock))
        self.service = LogService(scheduler, access, archive, feeds, clock)
        self.aclose = feeds.aclose


async def view(crowd: Crowd, seen: list[int], number: int) -> None:
    async for record, _ in await crowd.service.stream(_ALICE, "7", LogQuery(follow=True)):
        if isinstance(record, LogBlock):
            seen[number] += record.count


async def until(seen: list[int], lines: int) -> None:
    while min(seen) < lines:
        await asyncio.sleep(0.01)


async def measure(nodes: int, viewers: int, lines: int) -> None:
    crowd, seen = Crowd(nodes), [0] * viewers
    begun_s = time.process_time()
    first = asyncio.create_task(view(crowd, seen, 0))
    while len(crowd.nodes.names) < nodes:
        await asyncio.sleep(0.01)
    for node in crowd.nodes.names:
        crowd.nodes.write(node, b"the first line of its node\n")
    while seen[0] < nodes:
        await asyncio.sleep(0.01)
    opened_s = time.process_time() - begun_s
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    others = [asyncio.create_task(view(crowd, seen, number)) for number in range(1, viewers)]
    await until(seen, nodes)
    held = (tracemalloc.get_traced_memory()[0] - before) / max(1, viewers - 1)
    tracemalloc.stop()
    names = crowd.nodes.names
    begun_s = time.process_time()
    await asyncio.sleep(lines * _PAUSE_S)
    idle_s = time.process_time() - begun_s
    begun_s = time.process_time()
    for number in range(lines):
        crowd.nodes.write(names[number * 37 % nodes], _LINE)
        await asyncio.sleep(_PAUSE_S)
    await until(seen, nodes + lines)
    used_s = time.process_time() - begun_s - idle_s
    for task in (first, *others):
        task.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)
    await crowd.aclose()
    facts = {"nodes": nodes, "viewers": viewers, "lines": lines, "load": load()}
    each_us = used_s / lines / viewers * 1e6
    Figure(name="logs: cost of a line for each viewer", value=each_us, unit="µs of processor",
           goal=_GOAL_US, ok=each_us <= _GOAL_US).print(**facts)  # fmt: skip
    Figure(name="logs: cost of a node to open and read", value=opened_s / nodes * 1e6,
           unit="µs of processor").print(**facts)  # fmt: skip
    Figure(name="logs: memory of a viewer for each stream", value=held / nodes, unit="B").print(
        **facts
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.logs_rounds", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--lines", type=int, default=72)
    asked = parser.parse_args()
    asyncio.run(measure(asked.nodes, asked.viewers, asked.lines))


if __name__ == "__main__":
    main()
