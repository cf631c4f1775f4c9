"""A job of hundreds of nodes to look at: `lattice logs` on it, over the real wire.

    python -m bench.crowd --nodes 64 --ranks 8 --story training
    python -m bench.crowd --nodes 1000 --story flood -- lattice logs -f 42

Real are the server with both its faces, the link and the certificate of every node, and the feed
that each answers with. Made up are Slurm, which says that job 42 runs, and the files: a script
says what each rank writes and when. What stands behind `--` is run before the crowd, as the owner
of the job; without it the environment for that is printed, and the crowd goes on until interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import uvicorn

from bench.simulated_logs import JOB, OWNER, LogFeed, LogFile
from bench.stories import STORIES, Script, Story
from lattice.base.clock import SystemClock
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import Session, StreamKind
from lattice.server.listeners.composition import Faces
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.server import composed, token
from tests.integration.link.site import Agent, Server, Site

_PROCESSES = 2
_BEGAN = "began"
_SEATED_S, _SEATED_NODE_S = 4.0, 0.025
"""Until the story begins: for whoever looks to be there."""


class Node:
    """A node's ranks, which write as their scripts say, from the moment the story began."""

    def __init__(self, name: str, first_rank: int, ranks: int, story: Story, began: Path) -> None:
        self.name = name
        self._began_file = began
        numbers = range(first_rank, first_rank + ranks)
        self._files = [LogFile(f"0.{rank}") for rank in numbers]
        self._scripts = [story(name, rank) for rank in numbers]

    async def serve(self, session: Session, opening: bytes) -> None:
        """One server's feed. A second one begins the scripts anew, which is enough to look at."""
        feed = LogFeed(session, opening, self._files)
        answering = asyncio.create_task(feed.answer())
        try:
            await feed.report()
            await self._play(feed)
            await answering
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _play(self, feed: LogFeed) -> None:
        while not self._began_file.exists():
            await asyncio.sleep(0.1)
        began = self._began_file.stat().st_mtime
        for at_s, number, text in self._acts():
            wait_s = began + at_s - time.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await feed.push(self._files[number].write(text, int((began + at_s) * 1000)))

    def _acts(self) -> Iterator[tuple[float, int, bytes]]:
        def numbered(number: int, script: Script) -> Iterator[tuple[float, int, bytes]]:
            for at_s, text in script:
                yield at_s, number, text

        return heapq.merge(*(numbered(n, each) for n, each in enumerate(self._scripts)))


def names(count: int) -> list[str]:
    digits = len(str(count))
    return [f"n{number:0{digits}}" for number in range(1, count + 1)]


async def job_server(folder: Path, count: int) -> tuple[Server, Faces]:
    """A server that nodes link to, started, and what it offers to people: one job on all nodes."""
    site = Site(folder)
    server = Server(site, "r1")
    await server.start()
    scheduler = InMemoryScheduler(SystemClock())
    scheduler.accounts = ACCOUNTS
    nodes = NodeSet(names(count)).fold()
    scheduler.allocations.append(
        allocation(JOB, OWNER, "research", nodes=nodes, node_count=count, name="pretrain")
    )
    return server, composed(scheduler, nodes=server.desk, signer=site.signer)


async def serve(folder: Path, count: int) -> None:
    """The server, with both faces; tells where it is, then how many nodes are linked."""
    server, faces = await job_server(folder, count)
    door = uvicorn.Server(
        uvicorn.Config(faces.rest, port=server.people_port + 1, log_level="error", lifespan="off")
    )
    serving = asyncio.create_task(door.serve())
    while not door.started:
        await asyncio.sleep(0.01)
    print(json.dumps({"agents": server.port, "people": server.people_port + 1}), flush=True)
    while len(server.hub.held) < count:
        await asyncio.sleep(0.1)
    print(json.dumps({"linked": len(server.hub.held)}), flush=True)
    await serving


async def crowd(folder: Path, asked: argparse.Namespace) -> None:
    """A share of the nodes."""
    site = Site(folder)
    story = STORIES[asked.story]
    mine = list(enumerate(names(asked.nodes)))[asked.share :: _PROCESSES]
    made = []
    for number, name in mine:
        node = Node(name, number * asked.ranks, asked.ranks, story, folder / _BEGAN)
        serves = {StreamKind.LOGS: node.serve}
        agent = Agent(site, name, [f"127.0.0.1:{asked.port}"], seed=number, serves=serves)
        made.append(agent)
    for agent in made:
        agent.start()
    await asyncio.Event().wait()


def _many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))


def _started(
    role: str, folder: str, asked: argparse.Namespace, *more: str
) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "bench.crowd", "--role", role, "--folder", folder]
    words += ["--nodes", str(asked.nodes), "--ranks", str(asked.ranks), "--story", asked.story]
    return subprocess.Popen(
        [*words, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end_with_the_first() -> None:
    """A part ends when whoever started it does, however that was."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _told(part: subprocess.Popen[str]) -> dict[str, int]:
    assert part.stdout is not None
    line: dict[str, int] = json.loads(part.stdout.readline())
    return line


def _begin_in(folder: Path, seconds: float) -> None:
    """The moment the story begins is the time of a file, so that all processes agree on it."""
    made = folder / f"{_BEGAN}.new"
    made.touch()
    os.utime(made, (time.time() + seconds,) * 2)
    made.rename(folder / _BEGAN)


def run(asked: argparse.Namespace, command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        parts = [_started("serve", folder, asked)]
        try:
            ports = _told(parts[0])
            for share in range(_PROCESSES):
                more = ("--share", str(share), "--port", str(ports["agents"]))
                parts.append(_started("crowd", folder, asked, *more))
            # All are linked, which takes a thousand some time on two cores.
            _told(parts[0])
            _begin_in(Path(folder), _SEATED_S + asked.nodes * _SEATED_NODE_S)
            environment = {
                "LATTICE_API_URL": f"http://127.0.0.1:{ports['people']}",
                "LATTICE_TOKEN": token(OWNER, preferred_username=OWNER),
            }
            if command:
                # An interrupt is meant for what runs before the crowd.
                signal.signal(signal.SIGINT, lambda *_: None)
                return subprocess.run(command, env=os.environ | environment, check=False).returncode
            print("\n".join(f"export {name}={value}" for name, value in environment.items()))
            print(f"lattice logs -f {JOB}", flush=True)
            with suppress(KeyboardInterrupt):
                signal.pause()
            return 0
        finally:
            for part in parts:
                part.kill()
                part.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.crowd", description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--story", choices=sorted(STORIES), default="training")
    for hidden in ("--role", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--share", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:cut])
    _many_files()
    if asked.role is None:
        return run(asked, words[cut + 1 :])
    logging.disable(logging.WARNING)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    _end_with_the_first()
    folder = Path(asked.folder)
    asyncio.run(serve(folder, asked.nodes) if asked.role == "serve" else crowd(folder, asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
