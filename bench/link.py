"""Streams to a node through a replica, against a bare gRPC relay of the same shape.

    just bench link [--rounds N]

Client, relay and node are three processes; both hops carry certificates of both ends; the node
dials the relay in both. The bare relay pairs two raw streams and does nothing else: no session,
no resume, no grant, no flow control but gRPC's. One JSON line a figure, rounds interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import msgspec
from grpc import aio

from bench.figures import Figure, paired, say
from bench.measuring import Part, resident_kb
from lattice.adapters.pki.replica import ReplicaIdentity
from lattice.wire.carriers import EOF, STREAM_OPTIONS
from tests.eventually import eventually_async
from tests.integration.link.site import Agent, Caller, NodeKey, Server, Site

ECHOES = 300
CHUNK = 64 * 1024
FLOOD = 48 * 1024 * 1024
_BARE = "/bare.Relay/"


# The replica and the agent, each in a process.


async def serve_ours(folder: Path) -> None:
    site = Site(folder)
    site.people_show_certificates = True
    server = Server(site, "a")
    await server.start()
    say({"people": server.people_port, "agents": server.port})
    await asyncio.Event().wait()


async def agent_ours(folder: Path, port: str) -> None:
    agent = Agent(Site(folder), "n1", [f"127.0.0.1:{port}"])
    agent.start()
    await eventually_async(lambda: agent.keeper.line is not None)
    say({"ready": True})
    await asyncio.Event().wait()


async def serve_bare(folder: Path) -> None:
    site = Site(folder)
    identity = ReplicaIdentity(site.files, "bare", ["127.0.0.1"], site.clock)
    waiting: asyncio.Queue[tuple[Any, asyncio.Event]] = asyncio.Queue()

    async def node(_requests: Any, context: Any) -> None:
        done = asyncio.Event()
        waiting.put_nowait((context, done))
        await done.wait()

    async def client(_requests: Any, context: Any) -> None:
        other, done = await waiting.get()

        async def one_way(source: Any, target: Any) -> None:
            while (message := await source.read()) is not EOF:
                await target.write(message)

        ways = [asyncio.create_task(one_way(*way)) for way in ((context, other), (other, context))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            done.set()

    server = aio.server(options=list(STREAM_OPTIONS))
    handlers = {
        "Node": grpc.stream_stream_rpc_method_handler(node),
        "Client": grpc.stream_stream_rpc_method_handler(client),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Relay", handlers),))
    port = server.add_secure_port("127.0.0.1:0", identity.grpc_server_credentials())
    await server.start()
    say({"people": port, "agents": port})
    await asyncio.Event().wait()


async def agent_bare(folder: Path, port: str) -> None:
    """Keeps one stream in waiting; the first message says what is wanted of it."""
    say({"ready": True})
    async with _bare_channel(folder, port) as channel:
        dial: Any = channel.stream_stream
        while True:
            call = dial(_BARE + "Node")()
            wanted = json.loads(await call.read())
            if wanted:
                chunk = b"x" * CHUNK
                for _ in range(wanted["flood_bytes"] // CHUNK):
                    await call.write(chunk)
            while (message := await call.read()) is not EOF:
                await call.write(message)


def _bare_channel(folder: Path, port: str) -> aio.Channel:
    key = NodeKey(Site(folder).authority, "n1", timedelta(hours=1))
    options = [*key.channel_options(), *STREAM_OPTIONS]
    return aio.secure_channel(f"127.0.0.1:{port}", key.channel_credentials(), options=options)


# The client's two ways to speak.


class Ours:
    def __init__(self, folder: Path, port: str) -> None:
        self._folder, self._port = folder, port

    @asynccontextmanager
    async def stream(self, flood_bytes: int = 0) -> AsyncIterator[Caller]:
        opening = msgspec.json.encode({"flood_bytes": flood_bytes}) if flood_bytes else b""
        caller = SecureCaller(self._folder, self._port, opening)
        try:
            yield caller
        finally:
            await caller.stop()

    async def send(self, caller: Caller, message: bytes) -> None:
        await caller.conduit.send(message)

    async def receive(self, caller: Caller) -> bytes:
        return await caller.conduit.receive() or b""


class SecureCaller(Caller):
    def __init__(self, folder: Path, port: str, opening: bytes) -> None:
        self._folder, self._secure_port = folder, port
        super().__init__("n1", [f"127.0.0.1:{port}"], opening)

    def channel(self, address: str) -> aio.Channel:
        return _bare_channel(self._folder, address.rpartition(":")[2])


class Bare:
    def __init__(self, folder: Path, port: str) -> None:
        self._folder, self._port = folder, port

    @asynccontextmanager
    async def stream(self, flood_bytes: int = 0) -> AsyncIterator[Any]:
        async with _bare_channel(self._folder, self._port) as channel:
            dial: Any = channel.stream_stream
            call = dial(_BARE + "Client")()
            wanted = {"flood_bytes": flood_bytes} if flood_bytes else {}
            await call.write(json.dumps(wanted).encode())
            yield call
            call.cancel()

    async def send(self, call: Any, message: bytes) -> None:
        await call.write(message)

    async def receive(self, call: Any) -> bytes:
        return bytes(await call.read())


async def echo_ms(way: Any) -> float:
    """The median round trip of a small message."""
    payload = b"k" * 64
    async with way.stream() as stream:
        times = []
        for _ in range(ECHOES):
            begun = time.perf_counter()
            await way.send(stream, payload)
            assert await way.receive(stream) == payload
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def chunks_per_s(way: Any) -> float:
    """64 KiB messages a second, node to client."""
    async with way.stream(FLOOD) as stream:
        await way.receive(stream)
        begun, got = time.perf_counter(), 0
        while got < FLOOD - CHUNK:
            got += len(await way.receive(stream))
        return got / CHUNK / (time.perf_counter() - begun)


async def relay_memory_kib(way: Any, relay: int) -> tuple[int, int]:
    """The relay's memory when idle, and at most while the node writes and the client hardly reads.

    To be asked of a relay that has carried nothing large yet: what it once took it keeps.
    """
    idle = most = resident_kb(relay)
    async with way.stream(FLOOD) as stream:
        for _ in range(30):
            await way.receive(stream)
            await asyncio.sleep(0.1)
            most = max(most, resident_kb(relay))
    return idle, most


async def rounds_of(folder: Path, count: int) -> list[Figure]:
    with ExitStack() as stack:

        def part(role: str, *words: str) -> Part:
            made = Part("bench.link", "--role", role, str(folder), *words)
            stack.callback(made.end)
            made.until(bool, 60)
            return made

        replica, relay = part("serve_ours"), part("serve_bare")
        part("agent_ours", str(replica.last["agents"]))
        part("agent_bare", str(relay.last["agents"]))
        ours = Ours(folder, str(replica.last["people"]))
        bare = Bare(folder, str(relay.last["people"]))
        await echo_ms(ours)
        idle_kib, most_kib = await relay_memory_kib(ours, replica.process.pid)
        for way in (ours, bare):  # warm
            await echo_ms(way)
            await chunks_per_s(way)
        echo: dict[Any, list[float]] = {ours: [], bare: []}
        chunks: dict[Any, list[float]] = {ours: [], bare: []}
        for _ in range(count):
            for way in (ours, bare):
                echo[way].append(await echo_ms(way))
                chunks[way].append(await chunks_per_s(way))
    growth = most_kib / idle_kib
    return [
        paired("link echo p50", "ms", echo[ours], echo[bare], at_most=1.3),
        paired("link 64 KiB chunks", "1/s", chunks[ours], chunks[bare], at_least=0.85),
        Figure(
            name="relay memory, fast writer and slow reader to idle",
            value=most_kib,
            unit="KiB",
            bare=idle_kib,
            ratio=growth,
            goal=1.2,
            ok=growth <= 1.2,
        ),
    ]


def measure(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Site(folder)
        figures = asyncio.run(rounds_of(folder, rounds))
    for figure in figures:
        figure.print(rounds=rounds)
    return 0 if all(figure.ok for figure in figures) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="at least 7")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        folder, *rest = asked.words
        asyncio.run(globals()[asked.role](Path(folder), *rest))
        return 0
    return measure(max(asked.rounds, 7))


if __name__ == "__main__":
    sys.exit(main())
