"""Why a server can't be reached by gRPC, as people read it. The lines are gRPC's own."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
import trustme
from grpc import aio

from lattice.base.errors import Unavailable
from lattice.wire.dial_reasons import call_failure, dial_reason
from lattice.wire.status import error_of

_ALL = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:50051: "


_SOCKET = "failed to connect to all addresses; last error: UNKNOWN: unix:/run/x.sock: "


@pytest.mark.parametrize(
    ("details", "text", "hint"),
    [
        (_ALL + "Failed to connect to remote host: Connection refused", "connection refused", ""),
        (
            _ALL + "Cannot check peer: missing selected ALPN property.",
            "it does not speak gRPC",
            "port of REST",
        ),
        (
            "errors resolving x:50051: [field:hostname lookup error:address lookup failed for x]",
            "its name can't be resolved",
            "resolver",
        ),
        ("Deadline Exceeded", "no answer in time", "firewall"),
        (_ALL + "some new trouble", "it can't be reached (some new trouble)", ""),
        ("failed to connect to all addresses", "it can't be reached", ""),
        (
            _SOCKET + "No such file or directory",
            "there is no such socket",
            "correct its path",
        ),
        (
            _SOCKET + "Permission denied",
            "this user may not open that socket",
            "right to write",
        ),
        ("Method not found!", "it does not know this call", "older"),
        ("UNAVAILABLE", "it answers with an error, without a reason", ""),
        ("RESOURCE_EXHAUSTED", "it has too much to do", "later"),
        ("Stream removed", "the connection broke", ""),
        ("something gRPC never wrote before", "something gRPC never wrote before", ""),
    ],
)
def test_a_failed_dial_in_plain_words(details: str, text: str, hint: str) -> None:
    reason = dial_reason(details)
    assert reason.text == text
    assert hint in reason.hint


@pytest.mark.parametrize(
    ("code", "details", "text"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "n1 is in quarantine", "n1 is in quarantine"),
        (grpc.StatusCode.UNAVAILABLE, "Node n1 is not linked.", "Node n1 is not linked."),
        (grpc.StatusCode.UNAVAILABLE, _ALL + "Connection refused", "connection refused"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "the connection broke"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, "no answer in time"),
        (grpc.StatusCode.UNIMPLEMENTED, "", "it does not know this call"),
    ],
)
def test_what_the_other_side_said_stays_and_grpc_s_own_text_does_not(
    code: grpc.StatusCode, details: str | None, text: str
) -> None:
    assert call_failure(code, details) == text


async def _refusal(port: int, roots: bytes | None) -> Unavailable:
    credentials = grpc.ssl_channel_credentials(roots)
    async with aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        call = channel.unary_unary("/lattice.v1.HealthService/GetHealth")
        with pytest.raises(aio.AioRpcError) as failed:
            await call(b"", timeout=20)
    error = error_of(f"127.0.0.1:{port}", failed.value)
    assert isinstance(error, Unavailable)
    return error


async def _silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.spec("AUTH-9")
async def test_what_the_installed_grpc_reports_is_understood(tmp_path: Path) -> None:
    ours, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    roots = ours.cert_pem.bytes()
    async with await asyncio.start_server(_silent, "127.0.0.1", 0, ssl=context) as secure:
        port = secure.sockets[0].getsockname()[1]
        untrusted = await _refusal(port, other.cert_pem.bytes())
        assert "its certificate is refused: " in untrusted.message
        assert untrusted.hint is not None
        assert "--bootstrap-ca" in untrusted.hint
        rest = await _refusal(port, roots)
        assert rest.message.endswith("it does not speak gRPC")
    async with await asyncio.start_server(_silent, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert (await _refusal(port, roots)).message.endswith("it does not speak TLS")
    assert (await _refusal(port, roots)).message.endswith("connection refused")
