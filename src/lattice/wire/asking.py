"""One question to a node over a stream of its own, and all that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from lattice.domain.stream import CarrierLost, NodeStreams, StreamQuestion
from lattice.wire.conduit import Conduit, ConduitClosed


async def node_answers(nodes: NodeStreams, asked: StreamQuestion) -> AsyncGenerator[bytes, None]:
    """Message by message. Whoever reads it closes it.

    Raises `CarrierLost` and `ConduitClosed`, and what `NodeStreams.open` does.
    """
    conduit = Conduit()
    async with nodes.open(asked) as carrier:
        carrying = asyncio.ensure_future(conduit.carry(carrier))
        try:
            while (message := await _received(conduit, carrying)) is not None:
                yield bytes(message)
            with suppress(ConduitClosed):
                await conduit.send(b"", last=True)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


async def _received(conduit: Conduit, carrying: asyncio.Future[None]) -> bytes | None:
    receiving = asyncio.ensure_future(conduit.receive())
    try:
        await asyncio.wait((carrying, receiving), return_when=asyncio.FIRST_COMPLETED)
        if receiving.done():
            return receiving.result()
        carrying.result()
        raise CarrierLost("the connection was lost")
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
