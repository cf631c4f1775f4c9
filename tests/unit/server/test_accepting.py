"""Connections are counted from `accept` to their close, on the loop of the server and on asyncio's.

uvloop accepts and closes sockets by other calls than asyncio, so each story runs on both.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trustme
import uvloop

from lattice.base.address import Address
from lattice.base.pauses import LoopPauses
from lattice.server.listeners.connections import (
    AcceptingServer,
    ConnectionLimits,
    Connections,
    CountedListener,
)
from tests.eventually import eventually_async

HOST = "127.0.0.1"
LONG_S = 3600.0
Story = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    pauses = LoopPauses()
    factory = pauses.new_loop if request.param == "asyncio" else pauses.new_fast_loop

    async def whole(story: Story) -> None:
        is_fast = isinstance(asyncio.get_running_loop(), uvloop.Loop)
        assert is_fast is (request.param == "uvloop")
        await story()

    def run(story: Story) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole(story))

    return run


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        self.write(data)


@asynccontextmanager
async def serving(
    connections: Connections,
    context: ssl.SSLContext | None = None,
    handshake_s: float = LONG_S,
) -> AsyncIterator[int]:
    listener = CountedListener(Address(HOST, 0), connections)
    port = listener.getsockname()[1]
    server = AcceptingServer(listener, Echo, context, handshake_s)
    try:
        yield port
    finally:
        server.close()
        await server.wait_closed()


async def echoed(port: int, context: ssl.SSLContext | None = None) -> asyncio.StreamWriter:
    name = "server.example" if context else None
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
    writer.write(b"a line\n")
    assert await reader.readline() == b"a line\n"
    return writer


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("server.example").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_counts_until_it_is_closed(run: Callable[[Story], None], tls: bool) -> None:
    server, client = contexts() if tls else (None, None)

    async def story() -> None:
        connections = Connections(ConnectionLimits())
        async with serving(connections, server) as port:
            one, other = await echoed(port, client), await echoed(port, client)
            assert connections.open == 2
            one.close()
            await eventually_async(lambda: connections.open == 1)
            other.close()
            await eventually_async(lambda: connections.open == 0)

    run(story)


@pytest.mark.spec("LIMIT-4")
def test_a_handshake_counts_and_ends(run: Callable[[Story], None]) -> None:
    server, _ = contexts()

    async def story() -> None:
        connections = Connections(ConnectionLimits())
        async with serving(connections, server, handshake_s=0.05) as port:
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.read() == b"", "it was closed"
            await eventually_async(lambda: connections.open == 0)
            writer.close()
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            await eventually_async(lambda: connections.open == 0)
            writer.close()

    run(story)


@pytest.mark.spec("LIMIT-4")
def test_too_many_are_refused_and_the_others_stay(run: Callable[[Story], None]) -> None:
    async def story() -> None:
        connections = Connections(ConnectionLimits(in_all=2))
        async with serving(connections) as port:
            held = [await echoed(port), await echoed(port)]
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.read() == b""
            assert (connections.open, connections.refused_total) == (2, 1)
            writer.close()
            held.pop().close()
            await eventually_async(lambda: connections.open == 1)
            (await echoed(port)).close()
            held.pop().close()

    run(story)


def test_without_descriptors_it_accepts_again_later(
    run: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lattice.server.listeners.connections._PAUSE_S", 0.01)
    real, faults = CountedListener.accept, iter([errno.EMFILE, errno.ENFILE])

    def accept(listener: CountedListener) -> object:
        fault = next(faults, None)
        if fault is not None:
            raise OSError(fault, os.strerror(fault))
        return real(listener)

    monkeypatch.setattr(CountedListener, "accept", accept)

    async def story() -> None:
        async with serving(Connections(ConnectionLimits())) as port:
            (await echoed(port)).close()

    run(story)
    assert [each for each in caplog.messages if each.startswith("no connection")] == [
        "no connection can be accepted: Too many open files",
        "no connection can be accepted: Too many open files in system",
    ]


def test_a_closed_one_accepts_nothing(run: Callable[[Story], None]) -> None:
    async def story() -> None:
        connections = Connections(ConnectionLimits())
        async with serving(connections) as port:
            held = await echoed(port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
        held.write(b"still\n")
        await held.drain()
        held.close()
        await eventually_async(lambda: connections.open == 0)

    run(story)
