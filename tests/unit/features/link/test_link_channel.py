"""The connection of a link, which calls share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.base.errors import Unavailable, UsageError
from lattice.features.link.node.dialler import LinkChannel, linked_calls
from lattice.wire.status import grpc_status


class Replica:
    """Answers once it is released."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/replica.sock"
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self.refusal: UsageError | None = None

    async def _answer(self, _request: bytes, context: Any) -> bytes:
        self.asked.set()
        if self.refusal is not None:
            await context.abort(*grpc_status(self.refusal))
        await self.released.wait()
        return b"answer"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Replica]:
        server = aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("lattice.Test", {"Ask": handler}),)
        )
        server.add_insecure_port(self.address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    def link(self) -> LinkChannel:
        return LinkChannel(self.address, aio.insecure_channel(self.address))


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    async with asyncio.timeout(60), Replica(tmp_path).serving() as replica:
        yield replica


async def _ask(link: LinkChannel | None) -> bytes:
    async with linked_calls(link) as channel:
        ask: Any = channel.unary_unary("/lattice.Test/Ask")
        answer: bytes = await ask(b"")
        return answer


def _is_closed(link: LinkChannel) -> bool:
    return link.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


@pytest.mark.spec("AUTH-9")
async def test_a_call_outlasts_its_link_and_closes_the_connection(replica: Replica) -> None:
    link = replica.link()
    asking = asyncio.create_task(_ask(link))
    await replica.asked.wait()
    await link.close()
    assert not _is_closed(link)
    replica.released.set()
    assert await asking == b"answer"
    assert _is_closed(link)


@pytest.mark.spec("AUTH-9")
async def test_a_link_without_calls_closes_its_connection(replica: Replica) -> None:
    link = replica.link()
    replica.released.set()
    assert await _ask(link) == b"answer"
    assert not _is_closed(link)
    await link.close()
    assert _is_closed(link)


async def test_a_call_that_is_cancelled_leaves_the_connection_to_the_link(replica: Replica) -> None:
    link = replica.link()
    asking = asyncio.create_task(_ask(link))
    await replica.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    replica.released.set()
    assert await _ask(link) == b"answer"


async def test_a_refusal_is_raised_as_the_error_that_the_server_named(replica: Replica) -> None:
    replica.refusal = UsageError("No such thing.")
    with pytest.raises(UsageError, match="No such thing"):
        await _ask(replica.link())


@pytest.mark.parametrize("closed", [False, True])
async def test_without_a_link_there_are_no_calls(replica: Replica, closed: bool) -> None:
    link = None
    if closed:
        link = replica.link()
        await link.close()
    with pytest.raises(Unavailable, match="not linked"):
        await _ask(link)
