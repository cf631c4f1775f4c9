"""Nodes that send back what they get, without a wire: the two carriers of a stream are queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lattice.base.errors import NotFound
from lattice.domain.stream import Serve, StreamQuestion
from lattice.features.link.node.echo import serve_echo
from lattice.wire.conduit import Conduit


class QueueCarrier:
    """One side of a connection in memory."""

    def __init__(self, inwards: asyncio.Queue[bytes], outwards: asyncio.Queue[bytes]) -> None:
        self._inwards = inwards
        self._outwards = outwards

    async def send(self, frame: bytes) -> None:
        self._outwards.put_nowait(frame)

    async def receive(self) -> bytes:
        return await self._inwards.get()


@asynccontextmanager
async def answered_by(serve: Serve | None, opening: bytes) -> AsyncIterator[QueueCarrier]:
    """A carrier to a node's answer; None: nobody answers."""
    there: asyncio.Queue[bytes] = asyncio.Queue()
    back: asyncio.Queue[bytes] = asyncio.Queue()
    conduit = Conduit()
    tasks = [asyncio.create_task(conduit.carry(QueueCarrier(there, back)))]
    if serve is not None:
        tasks.append(asyncio.create_task(_until_over(serve, conduit, opening)))
    try:
        yield QueueCarrier(back, there)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_over(serve: Serve, session: Conduit, opening: bytes) -> None:
    await serve(session, opening)


class EchoingNodes:
    """The port `NodeStreams`; `names` are the nodes there are."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def linked_to(self, node: str) -> str:
        return "r1" if node in self._names else ""

    @asynccontextmanager
    async def open(self, question: StreamQuestion) -> AsyncIterator[QueueCarrier]:
        if question.node not in self._names:
            raise NotFound(f"No agent of node {question.node} has ever linked to Lattice.")
        async with answered_by(serve_echo, question.opening) as carrier:
            yield carrier
