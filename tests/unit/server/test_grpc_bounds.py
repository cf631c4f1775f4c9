"""What a client may do to the gRPC listener: real sockets on loopback, the real services."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.server.listeners.grpc_bounds import (
    LARGEST_MESSAGE_BYTES,
    MOST_STREAMS,
    service_options,
)
from lattice.wire.v1.health_pb2 import GetHealthRequest, Health
from tests.fakes.server import composed

HOST = "127.0.0.1"
SUBMIT = "/lattice.v1.SubmitService/SubmitAllocation"
HEALTH = "/lattice.v1.HealthService/GetHealth"
_SETTINGS = 4
_MAX_CONCURRENT_STREAMS = 3


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = composed().grpc
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    yield port
    await server.stop(None)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("grpc-flood")
async def test_a_stranger_is_refused_before_a_message_is_taken(port: int) -> None:
    """The call is open and sends nothing: a server that took the message first would wait."""
    async with aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.stream_unary(SUBMIT)()
        with pytest.raises(aio.AioRpcError) as refusal:
            await call
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.spec("LIMIT-4")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"x" * (LARGEST_MESSAGE_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["too large", "no message"],
)
async def test_what_is_no_message_of_ours_is_refused(
    port: int, sent: bytes, code: grpc.StatusCode
) -> None:
    async with aio.insecure_channel(f"{HOST}:{port}") as channel:
        with pytest.raises(aio.AioRpcError) as refusal:
            await channel.unary_unary(HEALTH)(sent)
    assert refusal.value.code() is code


@pytest.mark.spec("LIMIT-4")
async def test_a_call_that_ends_without_a_message_is_refused(port: int) -> None:
    async with aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.stream_unary(HEALTH)()
        await call.done_writing()
        with pytest.raises(aio.AioRpcError) as refusal:
            await call
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("grpc-flood")
async def test_a_connection_is_told_how_many_streams_it_may_open(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0]))
    settings = await _settings(reader)
    writer.close()
    assert settings[_MAX_CONCURRENT_STREAMS] == MOST_STREAMS


async def _settings(reader: asyncio.StreamReader) -> dict[int, int]:
    while True:
        head = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(head[:3]))
        if head[3] == _SETTINGS and body:
            return dict(struct.iter_unpack(">HI", body))


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("grpc-flood")
async def test_streams_that_are_reset_at_once_leave_the_server_answering(port: int) -> None:
    """Attack 39, rapid reset: opened and cancelled, more of them than may be open.

    The core refuses further streams of that connection (REFUSED_STREAM); others are answered.
    """
    async with aio.insecure_channel(f"{HOST}:{port}") as flood:
        for _ in range(20):
            calls: list[Any] = [flood.stream_unary(HEALTH)() for _ in range(MOST_STREAMS)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
        apart = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
        async with aio.insecure_channel(f"{HOST}:{port}", apart) as channel:
            ask = channel.unary_unary(HEALTH, GetHealthRequest.SerializeToString, Health.FromString)
            assert (await ask(GetHealthRequest())).version


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("many-connections")
async def test_one_connection_too_many_is_closed() -> None:
    server = aio.server(options=service_options(most_connections=1))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        first, held = await asyncio.open_connection(HOST, port)
        await first.read(1)  # its settings: it is counted
        second, other = await asyncio.open_connection(HOST, port)
        assert await second.read() == b""
        held.close()
        other.close()
    finally:
        await server.stop(None)
