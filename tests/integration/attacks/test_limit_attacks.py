"""Getting round the limits, and wearing a server out: attacks 23 and 24 at a real process."""

from __future__ import annotations

import gzip
import socket
import ssl
import struct
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from lattice.features.attach.model import PROTOCOL
from lattice.server.listeners.grpc_bounds import MOST_STREAMS
from lattice.wire.v1.diag_pb2 import Diagnosis, GetDiagnosticsRequest
from lattice.wire.v1.health_pb2 import GetHealthRequest, Health
from lattice.wire.v1.logs_pb2 import LogPage, ReadLogsRequest
from tests.eventually import eventually
from tests.fakes.identity_provider import IdentityProvider
from tests.integration.attacks.attacked_server import HOST, WHOAMI, AttackedServer, ask_on

MIB = 2**20
MOST_GROWTH_BYTES = 50 * MIB
BOMB_BYTES = 256 * MIB
SOCKETS = 300
DIAGNOSTICS = "/v1/allocations/1/diagnostics"
GRPC_HEALTH = "/lattice.v1.HealthService/GetHealth"

DISGUISES = [
    {"X-User-Id": "somebody"},
    {"x-USER-id": "SOMEBODY"},
    {"X-Forwarded-User": "somebody", "X-Remote-User": "somebody", "Remote-User": "somebody"},
    {"X-Sub": "somebody", "Sub": "somebody"},
    {"X-Forwarded-For": "203.0.113.7"},
    {"x-forwarded-FOR": "203.0.113.8, 203.0.113.9"},
    {"Forwarded": "for=203.0.113.7;by=203.0.113.8"},
    {"X-Real-IP": "203.0.113.7", "X-Client-IP": "203.0.113.7"},
    {"True-Client-IP": "203.0.113.7", "CF-Connecting-IP": "203.0.113.7"},
    {"X-Original-URL": "/healthz", "X-Rewrite-URL": "/healthz"},
    {"User-Agent": "another"},
    {"Cookie": "sub=somebody"},
]


def _is_answered(server: AttackedServer) -> bool:
    """An honest caller is, by either door."""
    with server.channel() as channel:
        ask = channel.unary_unary(
            GRPC_HEALTH, GetHealthRequest.SerializeToString, Health.FromString
        )
        version = ask(GetHealthRequest(), timeout=60).version
    return bool(version) and server.ask(WHOAMI, headers=server.bearer()).status == 200


@pytest.mark.story
@pytest.mark.spec("LIMIT-1", "LIMIT-2")
@pytest.mark.threat("caller-headers")
def test_no_header_gives_a_caller_a_new_bucket(server: AttackedServer) -> None:
    """Attack 23: one diagnosis a minute is what `greedy` has, whatever the request says of her."""
    greedy = server.bearer("greedy")
    assert server.ask(DIAGNOSTICS, headers=greedy).status != 429
    for disguise in DISGUISES:
        answer = server.ask(DIAGNOSTICS, headers={**disguise, **greedy})
        assert answer.status == 429, disguise
        assert int(answer.headers["retry-after"]) >= 1
    again = server.bearer("greedy", iat=int(server.clock.now().timestamp()) - 1, jti="2")
    other_claims = server.bearer("greedy", preferred_username="somebody", tenant="another")
    for headers in (again, other_claims):
        assert server.ask(DIAGNOSTICS, headers=headers).status == 429
    assert server.ask("/api" + DIAGNOSTICS, headers=greedy).status == 429
    assert server.ask("/v1/allocations/2/diagnostics/gpu", headers=greedy).status == 429
    assert server.ask(DIAGNOSTICS, headers=server.bearer("modest")).status != 429, "has her own"


@pytest.mark.spec("LIMIT-1", "LIMIT-2")
def test_neither_address_nor_connection_nor_protocol_gives_a_new_bucket(
    server: AttackedServer,
) -> None:
    """Attack 23: the bucket that REST emptied is empty over gRPC, and from another address."""
    roaming = server.bearer("roaming")
    assert server.ask(DIAGNOSTICS, headers=roaming).status != 429
    for last in range(2, 6):
        with _from(server, f"127.0.0.{last}") as client:
            assert ask_on(client, DIAGNOSTICS, headers=roaming).status == 429
    with server.channel() as channel:
        ask = channel.unary_unary(
            "/lattice.v1.DiagnosticsService/GetDiagnostics",
            GetDiagnosticsRequest.SerializeToString,
            Diagnosis.FromString,
        )
        metadata = (
            ("authorization", roaming["Authorization"]),
            ("x-user-id", "somebody"),
            ("x-forwarded-for", "203.0.113.7"),
        )
        with pytest.raises(grpc.RpcError) as refused:
            ask(GetDiagnosticsRequest(id="1"), metadata=metadata, timeout=60)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(error.trailing_metadata())["retry-after"]) >= 1


@contextmanager
def _from(server: AttackedServer, address: str) -> Iterator[HTTPSConnection]:
    client = HTTPSConnection(
        HOST, server.rest_port, context=server.tls(), timeout=60, source_address=(address, 0)
    )
    try:
        yield client
    finally:
        client.close()


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("caller-headers")
def test_no_header_gives_a_stranger_a_new_bucket(tmp_path: Path, idp: IdentityProvider) -> None:
    """Attack 23 without a token: an address is that of the connection."""
    server = AttackedServer(tmp_path, idp)
    server.config["rate_limits"] = {"public_per_minute": 1}
    discovery = "/v1/auth/discovery"
    with server.serving():
        eventually(lambda: server.ask(discovery).status, lambda status: status == 429)
        for disguise in DISGUISES[4:8]:
            assert server.ask(discovery, headers=disguise).status == 429, disguise
        with _from(server, "127.0.0.2") as client:
            assert ask_on(client, discovery).status == 200


def _upgrade(server: AttackedServer) -> bytes:
    head = [
        "GET /v1/allocations/1/attach HTTP/1.1",
        "Host: x",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: {PROTOCOL}",
        f"Authorization: {server.bearer()['Authorization']}",
    ]
    return "\r\n".join([*head, "", ""]).encode()


@contextmanager
def _sockets(server: AttackedServer, sent: bytes, until: bytes) -> Iterator[list[ssl.SSLSocket]]:
    """Many connections that said this much and were answered so far."""
    context, opened = server.tls(), []
    try:
        for _ in range(SOCKETS):
            plain = socket.create_connection((HOST, server.rest_port), timeout=60)
            each = context.wrap_socket(plain, server_hostname=HOST)
            opened.append(each)
            each.sendall(sent)
            answer = b""
            while until not in answer:
                part = each.recv(4096)
                assert part, answer
                answer += part
        yield opened
    finally:
        for each in opened:
            each.close()


@pytest.mark.spec("LIMIT-4")
@pytest.mark.parametrize("kind", ["nothing said", "half an upgrade", "upgraded and silent"])
@pytest.mark.threat("many-connections")
def test_many_open_sockets_cost_little_and_nobody_else_notices(
    tmp_path: Path, idp: IdentityProvider, kind: str
) -> None:
    """Attack 23, a reconnect storm included: they are all opened three times."""
    server = AttackedServer(tmp_path, idp)
    with server.serving():
        whole = _upgrade(server)
        sent, until = {
            "nothing said": (b"", b""),
            "half an upgrade": (whole[:120], b""),
            "upgraded and silent": (whole, b"\r\n\r\n"),
        }[kind]
        assert _is_answered(server), "what is loaded at the first call is loaded"
        with server.grows_at_most(MOST_GROWTH_BYTES):
            for _ in range(3):
                with _sockets(server, sent, until):
                    assert _is_answered(server)
        assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
def test_a_socket_that_never_starts_a_terminal_is_let_go(server: AttackedServer) -> None:
    """Attack 23: an upgrade holds its connection for some seconds and takes no session."""
    with server.dial(server.rest_port) as line:
        line.sendall(_upgrade(server))
        answer = b""
        with suppress(ssl.SSLEOFError, ConnectionResetError):
            while part := line.recv(4096):
                answer += part
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b'"code":"usage"' in answer.replace(b" ", b"")


@pytest.mark.spec("LIMIT-4")
def test_a_frame_of_four_gigabytes_is_refused_by_its_head(server: AttackedServer) -> None:
    """Attack 24: nothing of it is waited for, or kept."""
    head = b"\x82\xff" + struct.pack("!Q", 4 * 2**30) + b"\0\0\0\0"
    with server.grows_at_most(16 * MIB), server.dial(server.rest_port) as line:
        line.sendall(_upgrade(server))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += line.recv(4096)
        line.sendall(head)
        frame = answer.partition(b"\r\n\r\n")[2]
        with suppress(ssl.SSLEOFError, ConnectionResetError):
            while part := line.recv(4096):
                frame += part
    assert frame[:1] == b"\x88"
    assert struct.unpack("!H", frame[2:4]) == (1009,)
    assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.parametrize(
    "line", [b"X-%d: y\r\n", b"X: %d\r\n", b" %d folded\r\n"], ids=["many", "one", "folded"]
)
@pytest.mark.threat("large-head")
def test_a_million_headers_are_refused(server: AttackedServer, line: bytes) -> None:
    """Attack 24: the connection is closed long before the last of them."""
    with server.grows_at_most(16 * MIB), server.dial(server.rest_port) as hostile:
        hostile.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: y\r\n")
        answer, sent = b"", 0
        with suppress(OSError):
            for start in range(0, 1_000_000, 1000):
                hostile.sendall(b"".join(line % number for number in range(start, start + 1000)))
                sent += 1000
        with suppress(OSError):
            answer = hostile.recv(4096)
    assert sent < 1_000_000
    # What the server wrote may be lost with the connection that it closed.
    assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), answer
    assert _is_answered(server)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RST_STREAM, _SETTINGS, _CONTINUATION = 1, 3, 4, 9
_END_HEADERS = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _literal(index: bytes, *texts: bytes) -> bytes:
    """A header field without Huffman coding, which is not put into the table."""
    return index + b"".join(bytes((len(each),)) + each for each in texts)


def _call(path: bytes) -> bytes:
    """The header block of a gRPC call: POST, https, and five fields more."""
    return b"\x83\x87" + b"".join(
        (
            _literal(b"\x04", path),
            _literal(b"\x01", b"x"),
            _literal(b"\x0f\x10", b"application/grpc"),
            _literal(b"\x00", b"te", b"trailers"),
        )
    )


def _send_batches(hostile: ssl.SSLSocket, batches: Iterator[bytes]) -> None:
    """Until all are sent or the server has enough; what it answers is read away."""
    hostile.sendall(PREFACE + _frame(_SETTINGS, 0, 0))
    with suppress(OSError):
        for batch in batches:
            hostile.settimeout(60)
            hostile.sendall(batch)
            hostile.settimeout(0.01)
            with suppress(TimeoutError):
                while hostile.recv(65_536):
                    pass


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("grpc-flood")
def test_streams_that_are_reset_at_once_leave_the_server_to_others(server: AttackedServer) -> None:
    """Attack 24, HTTP/2 rapid reset: 20 000 streams on one connection, each opened and reset."""
    block = _call(GRPC_HEALTH.encode())

    def batches() -> Iterator[bytes]:
        for start in range(1, 40_000, 2 * MOST_STREAMS):
            yield b"".join(
                _frame(_HEADERS, _END_HEADERS, stream, block)
                + _frame(_RST_STREAM, 0, stream, (8).to_bytes(4))
                for stream in range(start, start + 2 * MOST_STREAMS, 2)
            )

    with server.grows_at_most(MOST_GROWTH_BYTES):
        with server.dial(server.grpc_port, "h2") as hostile:
            _send_batches(hostile, batches())
            assert _is_answered(server)
        assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
def test_headers_that_never_end_are_not_kept(server: AttackedServer) -> None:
    """Attack 24 at the gRPC port: 256 MiB of one header block, in frames that continue it.

    grpc's core holds some tens of MiB of what a fast sender has sent, and drops the rest.
    """
    field = _literal(b"\x00", b"x-flood", b"y" * 120) * 100
    frames = _frame(_CONTINUATION, 0, 1, field) * 100

    def batches() -> Iterator[bytes]:
        yield _frame(_HEADERS, 0, 1, _call(GRPC_HEALTH.encode()))
        for _ in range(BOMB_BYTES // len(frames)):
            yield frames

    with server.grows_at_most(BOMB_BYTES // 2):
        with server.dial(server.grpc_port, "h2") as hostile:
            _send_batches(hostile, batches())
            assert _is_answered(server)
        assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("bombs")
def test_a_message_that_swells_is_refused(server: AttackedServer) -> None:
    """Attack 24: 256 KiB of gzip that would be 256 MiB, from one who may send messages."""
    metadata = (("authorization", f"Bearer {server.token()}"),)
    with server.channel() as channel:
        send = channel.unary_unary("/lattice.v1.SubmitService/SubmitAllocation", bytes, bytes)
        with server.grows_at_most(MOST_GROWTH_BYTES), pytest.raises(grpc.RpcError) as refused:
            send(
                bytes(BOMB_BYTES),
                metadata=metadata,
                timeout=60,
                compression=grpc.Compression.Gzip,
            )
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("bombs")
def test_a_body_is_never_unpacked(server: AttackedServer) -> None:
    """Attack 24: gzip is read as the JSON that it is not."""
    admin = server.bearer("root-1", scope="admin")
    headers = {**admin, "Content-Encoding": "gzip", "Content-Type": "application/json"}
    with server.grows_at_most(MOST_GROWTH_BYTES), server.connection() as client:
        client.request("POST", "/v1/locks", gzip.compress(bytes(32 * MIB)), headers)
        assert client.getresponse().status == 400
    assert _is_answered(server)


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("bombs")
def test_a_cursor_that_swells_is_refused(server: AttackedServer) -> None:
    """Attack 24: a cursor is compressed, and comes back from whoever was given one."""
    packed = urlsafe_b64encode(zlib.compress(bytes(BOMB_BYTES), 9)).decode()
    metadata = (("authorization", f"Bearer {server.token()}"),)
    with server.channel() as channel:
        read = channel.unary_unary(
            "/lattice.v1.LogService/ReadLogs", ReadLogsRequest.SerializeToString, LogPage.FromString
        )
        with server.grows_at_most(MOST_GROWTH_BYTES), pytest.raises(grpc.RpcError):
            read(ReadLogsRequest(id="1", cursor=packed), metadata=metadata, timeout=60)
    assert _is_answered(server)
