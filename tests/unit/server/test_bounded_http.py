"""What a client may do to the REST listener: real sockets on loopback, the real application.

Deadlines are set to a blink. A test asserts what happens, never how long it took.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import h11
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from lattice.base.address import Address
from lattice.server.config.api_section import ApiSection
from lattice.server.listeners.bounded_http import BoundedHttp, HttpBounds, StrictConnection
from lattice.server.listeners.composition import Faces
from lattice.server.listeners.connections import ConnectionLimits, Connections, CountedListener
from lattice.server.listeners.listeners import TLS_BUFFER_BYTES, RestServer, rest_config
from tests.eventually import eventually_async
from tests.fakes.server import bearer, composed

_SslProtocol: Any = asyncio.sslproto.SSLProtocol
HOST = "127.0.0.1"
LONG_S = 3600.0
QUICK = HttpBounds(head_s=0.05, body_window_s=0.05)
QUICK_WITH_HEADS = HttpBounds(head_s=0.5)
"""On a busy machine it may take a while from the connection to the first byte."""
QUICK_WITH_BODIES = HttpBounds(head_s=LONG_S, body_window_s=0.05)
PATIENT = HttpBounds(head_s=LONG_S, body_window_s=LONG_S)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: server\r\n"


@dataclass
class Site:
    port: int
    connections: Connections

    @asynccontextmanager
    async def dialled(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def answer(self, *pieces: bytes) -> bytes:
        """All that comes back until the server closes, for what is sent."""
        async with self.dialled() as (reader, writer):
            for each in pieces:
                writer.write(each)
                await writer.drain()
            return await reader.read()


@pytest.fixture
async def faces() -> Faces:
    return composed()


@asynccontextmanager
async def serving(
    faces: Faces,
    bounds: HttpBounds,
    limits: ConnectionLimits | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Site]:
    connections = Connections(limits or ConnectionLimits())
    listener = CountedListener(Address(HOST, 0), connections)
    config = rest_config(ApiSection(shutdown_grace_s=1), faces)
    if tls is not None:
        config.load()
        config.ssl = tls
    rest = RestServer(config, bounds)
    task = asyncio.create_task(rest.serve(sockets=[listener]))
    await eventually_async(lambda: rest.started)
    try:
        yield Site(listener.getsockname()[1], connections)
    finally:
        rest.should_exit = True
        await task


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def message_of(answer: bytes) -> str:
    message: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    return message


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request")
async def test_half_a_head_is_answered_and_closed(faces: Faces) -> None:
    async with serving(faces, QUICK_WITH_HEADS) as site:
        answer = await site.answer(HEALTH)
        assert status_of(answer) == 408
        assert "head of the request did not arrive" in message_of(answer)
        await eventually_async(lambda: site.connections.open == 0)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request")
async def test_a_head_of_a_byte_at_a_time_gets_no_more_time_for_each_byte(faces: Faces) -> None:
    async with serving(faces, QUICK_WITH_HEADS) as site, site.dialled() as (reader, writer):
        reading = asyncio.ensure_future(reader.read())
        sent = 0
        while not reading.done():
            # A header without end: only a deadline for the whole head ends it.
            writer.write(HEALTH[sent : sent + 1] or b"x")
            sent += 1
            await asyncio.sleep(0.01)
        assert status_of(await reading) == 408


@pytest.mark.spec("LIMIT-4")
async def test_a_connection_without_a_word_is_closed_without_a_word(faces: Faces) -> None:
    async with serving(faces, QUICK) as site:
        with suppress(ConnectionResetError):
            assert await site.answer() == b""
        await eventually_async(lambda: site.connections.open == 0)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request", "many-connections")
async def test_half_a_handshake_is_counted_and_closed(faces: Faces) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(HOST).configure_cert(context)
    async with serving(faces, PATIENT, tls=context) as site, site.dialled():
        await eventually_async(lambda: site.connections.open == 1)
    async with serving(faces, QUICK, tls=context) as site:
        with suppress(ConnectionResetError):
            assert await site.answer(b"\x16\x03\x01") == b""
        await eventually_async(lambda: site.connections.open == 0)


@pytest.mark.spec("LIMIT-4")
async def test_a_connection_costs_little_memory_before_it_says_anything(
    faces: Faces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 23: asyncio's own 256 KiB for each would be a gigabyte for one address."""
    monkeypatch.setattr(_SslProtocol, "max_size", 256 * 1024)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert(HOST).configure_cert(context)
    gc.collect()  # of tests before
    async with serving(faces, PATIENT, tls=context) as site, site.dialled():
        await eventually_async(lambda: site.connections.open == 1)
        protocols = [each for each in gc.get_objects() if isinstance(each, _SslProtocol)]
        assert protocols
        assert {len(each._ssl_buffer) for each in protocols} == {TLS_BUFFER_BYTES}


@pytest.mark.spec("LIMIT-4")
async def test_half_a_head_after_a_whole_request_is_closed(faces: Faces) -> None:
    async with serving(faces, QUICK_WITH_HEADS) as site:
        answer = await site.answer(HEALTH + b"\r\n" + HEALTH)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answer


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request")
@pytest.mark.parametrize("known", [True, False], ids=["caller", "stranger"])
async def test_half_a_body_is_closed(faces: Faces, known: bool) -> None:
    """A stranger is answered before his body was read; it must not keep the connection open."""
    head = _submit_head(b"Content-Length: 100000", known=known)
    async with serving(faces, QUICK_WITH_BODIES) as site:
        answer = await site.answer(head, b'{"script":')
        assert status_of(answer) == (408 if known else 401)
        await eventually_async(lambda: site.connections.open == 0)


@pytest.mark.spec("LIMIT-4")
async def test_framing_of_a_body_is_not_taken_for_the_body(faces: Faces) -> None:
    """Extensions of chunks are bytes too, but nothing of what was promised."""
    head = _submit_head(b"Transfer-Encoding: chunked", known=True)
    async with serving(faces, QUICK_WITH_BODIES) as site, site.dialled() as (reader, writer):
        writer.write(head)
        reading = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            while not reading.done():
                writer.write(b"1;" + b"x" * 10_000 + b"\r\n \r\n")
                await writer.drain()
                await asyncio.sleep(0.005)
        with suppress(ConnectionResetError):
            assert status_of(await reading) == 408
        await eventually_async(lambda: site.connections.open == 0)


@pytest.mark.spec("LIMIT-4")
async def test_a_steady_body_arrives(faces: Faces) -> None:
    content = json.dumps({"script": "#!/bin/sh\n" + "#" * 40_000}).encode()
    bounds = HttpBounds(head_s=LONG_S, body_window_s=0.2, body_floor_bytes_s=1000)
    head = _submit_head(b"Content-Length: %d\r\nConnection: close" % len(content), known=True)
    async with serving(faces, bounds) as site, site.dialled() as (reader, writer):
        writer.write(head)
        for begin in range(0, len(content), 2000):
            writer.write(content[begin : begin + 2000])
            await writer.drain()
            await asyncio.sleep(0.02)
        assert status_of(await reader.read()) != 408


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("two-lengths")
async def test_a_length_and_an_encoding_together_are_refused(faces: Faces) -> None:
    """Otherwise a proxy before the server may see one request where the server sees two."""
    for pair in (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    ):
        head = b"POST /v1/allocations HTTP/1.1\r\nHost: server\r\n" + pair + b"\r\n\r\n"
        async with serving(faces, PATIENT) as site:
            answer = await site.answer(head + b"0\r\n\r\n" + HEALTH + b"\r\n")
        assert status_of(answer) == 400
        assert "either Content-Length or Transfer-Encoding" in message_of(answer)
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("large-head")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"".join(b"X-%d: y\r\n" % n for n in range(200)), 431),
        (b"X: " + b"y" * 60_000 + b"\r\n", 431),
        (b"Content-Length: 4194305\r\n", 413),
        (b"Content-Length: nonsense\r\n", 400),
    ],
    ids=["many headers", "a long header", "a large body", "nonsense"],
)
async def test_what_is_too_large_is_refused_by_its_head(
    faces: Faces, headers: bytes, status: int
) -> None:
    async with serving(faces, PATIENT) as site:
        with suppress(ConnectionResetError):
            answer = await site.answer(HEALTH + headers + b"\r\n")
            assert status_of(answer) == status
            assert b"connection: close" in answer.lower()
            assert b"frame-ancestors 'none'" in answer


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("large-head")
async def test_a_body_that_does_not_name_its_size_is_counted(faces: Faces) -> None:
    bounds = HttpBounds(head_s=LONG_S, body_window_s=LONG_S, largest_body_bytes=1000)
    head = _submit_head(b"Transfer-Encoding: chunked", known=True)
    async with serving(faces, bounds) as site:
        answer = await site.answer(head, b"3e9\r\n" + b"x" * 1001 + b"\r\n")
        assert status_of(answer) == 413


@pytest.mark.spec("LIMIT-4")
async def test_a_caller_does_not_name_its_own_address(faces: Faces) -> None:
    """Attack 23: by such a header every request would come from an address of its own."""
    clients = []

    async def record(scope: Any, _: Any, send: Any) -> None:
        clients.append((scope["client"][0], scope["scheme"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    app: Any = record
    async with serving(replace(faces, rest=app), PATIENT) as site:
        named = b"X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: https\r\n"
        await site.answer(HEALTH + named + b"Connection: close\r\n\r\n")
    assert clients == [(HOST, "http")]


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("many-connections")
async def test_one_address_and_all_together_have_so_many_connections(faces: Faces) -> None:
    async with serving(faces, PATIENT, ConnectionLimits(in_all=3, per_address=2)) as site:
        async with site.dialled() as (first, writer), site.dialled():
            await eventually_async(lambda: site.connections.of(HOST) == 2)
            with suppress(ConnectionError):
                assert await site.answer() == b""
            assert site.connections.refused_total == 1
            writer.write(HEALTH + b"Connection: close\r\n\r\n")
            assert status_of(await first.read()) == 200
        await eventually_async(lambda: site.connections.open == 0)
        assert status_of(await site.answer(HEALTH + b"Connection: close\r\n\r\n")) == 200


@pytest.mark.threat("many-connections")
def test_the_limit_of_all_holds_over_addresses() -> None:
    connections = Connections(ConnectionLimits(in_all=3, per_address=2))
    entered = [connections.enter(host) for host in ("a", "a", "a", "b", "c")]
    assert entered == [True, True, False, True, False]
    connections.leave("a")
    assert connections.enter("c")
    assert (connections.open, connections.of("a"), connections.refused_total) == (3, 1, 2)


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that accepts every WebSocket and sends back what it receives."""
    assert scope["type"] == "websocket"
    while (event := await receive())["type"] != "websocket.disconnect":
        if event["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "websocket.send", "bytes": event["bytes"]})


@pytest.mark.spec("ATTACH-1", "LIMIT-4")
async def test_a_websocket_owes_neither_a_head_nor_a_body() -> None:
    """Nothing of HTTP is written into it, however long it lasts."""
    async with (
        serving(cast("Faces", SimpleNamespace(rest=_echo)), QUICK_WITH_BODIES) as site,
        connect(f"ws://{HOST}:{site.port}/") as socket,
    ):
        for message in (b"one", b"two", b"three"):
            await asyncio.sleep(2 * QUICK_WITH_BODIES.body_window_s)
            await socket.send(message)
            assert await socket.recv() == message
        # A timer would keep the protocol of HTTP in memory.
        loop = asyncio.get_running_loop()
        heads = (each for each in gc.get_objects() if isinstance(each, BoundedHttp))
        assert not any(each._timer for each in heads if each.loop is loop)


@pytest.mark.threat("foreign-host")
async def test_no_redirect_leads_to_the_host_of_the_caller(faces: Faces) -> None:
    async with serving(faces, PATIENT) as site:
        answer = await site.answer(
            b"GET /healthz/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        )
    assert status_of(answer) == 404
    assert b"evil.example" not in answer


@given(parts=st.lists(st.binary(max_size=40), max_size=5), method=st.sampled_from(["GET", "HEAD"]))
def test_bodies_are_framed_as_h11_frames_them(parts: list[bytes], method: str) -> None:
    for headers in ([], [("content-length", str(sum(map(len, parts))))]):
        sent = []
        for connection in (StrictConnection(HttpBounds()), h11.Connection(h11.SERVER)):
            connection.receive_data(f"{method} / HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            connection.next_event()
            connection.next_event()
            body = parts if method == "GET" else []
            events = [
                h11.Response(status_code=200, headers=headers),
                *(h11.Data(data=each) for each in body),
                h11.EndOfMessage(),
            ]
            sent.append([connection.send(each) for each in events])
            assert connection.our_state is not h11.ERROR
        assert sent[0] == sent[1]


def test_a_body_after_its_end_is_refused() -> None:
    connection = StrictConnection(HttpBounds())
    connection.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    connection.next_event()
    connection.next_event()
    connection.send(h11.Response(status_code=200, headers=[]))
    connection.send(h11.EndOfMessage())
    with pytest.raises(h11.LocalProtocolError):
        connection.send(h11.Data(data=b"more"))


def _submit_head(more: bytes, *, known: bool) -> bytes:
    token = bearer("alice-1", preferred_username="alice") if known else {}
    lines = [f"{name}: {text}".encode() for name, text in token.items()]
    lines += [b"Host: server", b"Content-Type: application/json", more]
    return b"POST /v1/allocations HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.mark.timing
@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("slow-request")
async def test_half_a_head_and_half_a_body_are_closed_within_ten_seconds(faces: Faces) -> None:
    halves = (
        (HEALTH,),
        (_submit_head(b"Content-Length: 4000000", known=True), b"x" * 50_000),
    )
    async with serving(faces, HttpBounds()) as site:
        for pieces in halves:
            begun_s = time.monotonic()
            assert status_of(await site.answer(*pieces)) in {400, 408}
            assert time.monotonic() - begun_s <= 10.5
