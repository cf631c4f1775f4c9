"""A stream cut again and again, at any byte, on either side of the replica: content compared.

Both connections of a stream run through a door that lets so many bytes pass and then drops the
connection in the middle of whatever it was: a frame, a header, a handshake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tests.eventually import eventually_async
from tests.integration.link.site import Caller, Server, Site

_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CuttingDoor:
    """Passes bytes on to a port of this machine and cuts every connection sooner or later."""

    def __init__(self, target: int, chance: Random) -> None:
        self.cuts = 0
        self.cutting = True
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._passing(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _passing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", self._target)
                try:
                    await self._both_ways((reader, writer), there)
                finally:
                    there[1].transport.abort()
        finally:
            writer.transport.abort()

    async def _both_ways(self, here: _Ends, there: _Ends) -> None:
        # Most cuts fall into the data, some into the greeting or the handshake.
        budget = [int(2 ** self._chance.uniform(0, 19)) if self.cutting else 1 << 60]
        ways = [
            asyncio.create_task(self._way(here[0], there[1], budget)),
            asyncio.create_task(self._way(there[0], here[1], budget)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _way(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, budget: list[int]
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if len(data) >= budget[0]:
                    target.write(data[: budget[0]])
                    await target.drain()
                    self.cuts += 1
                    return
                budget[0] -= len(data)
                target.write(data)
                await target.drain()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class CutRun:
    """What a run of cuts came to."""

    cuts: int
    lane_cuts: int
    """Those of lanes, if there were any."""
    connections: int
    messages: int
    bytes_each_way: int


def messages(chance: Random) -> Iterator[bytes]:
    """Numbered, of all sizes."""
    number = 0
    while True:
        size = int(2 ** chance.uniform(0, 15))
        yield number.to_bytes(8, "big") + chance.randbytes(size)
        number += 1


async def _to_agents(server: Server, chance: Random, *, lanes: bool) -> list[CuttingDoor]:
    """Agents come for streams through these; the link itself is dialled directly."""
    to_grpc = CuttingDoor(server.port, chance)
    server.desk._address = f"127.0.0.1:{await to_grpc.start()}"
    if not lanes:
        return [to_grpc]
    to_lanes = CuttingDoor(int(server.desk.lane_address.rpartition(":")[2]), chance)
    server.desk.lane_address = f"127.0.0.1:{await to_lanes.start()}"
    return [to_grpc, to_lanes]


async def run_cuts(site: Site, cuts: int, seed: int) -> CutRun:
    """Echo messages until so many cuts have happened; raises where content differs."""
    chance = Random(seed)
    server = await site.server("a")
    doors = await _to_agents(server, chance, lanes=site.lanes)
    to_people = CuttingDoor(server.people_port, chance)
    doors.append(to_people)
    door = await to_people.start()
    agent = site.agent("n1", server)
    await eventually_async(lambda: agent.keeper.line is not None)
    caller = Caller("n1", [f"127.0.0.1:{door}"])
    expected: asyncio.Queue[bytes | None] = asyncio.Queue()

    def counted() -> int:
        return sum(each.cuts for each in doors)

    async def write() -> tuple[int, int]:
        count = size = 0
        for message in messages(chance):
            if counted() >= cuts:
                break
            expected.put_nowait(message)
            await caller.conduit.send(message)
            count, size = count + 1, size + len(message)
        for each in doors:
            each.cutting = False
        expected.put_nowait(None)
        await caller.conduit.send(b"", last=True)
        return count, size

    writing = asyncio.create_task(write())
    try:
        while True:
            wanted, got = await expected.get(), await caller.conduit.receive()
            if wanted != got:
                raise AssertionError("what came back is not what was sent")
            if wanted is None:
                break
        count, size = await writing
        await caller.finished()
        return CutRun(
            counted(), doors[1].cuts if site.lanes else 0, caller.connections, count, size
        )
    finally:
        writing.cancel()
        await caller.stop()
        for each in doors:
            await each.stop()
