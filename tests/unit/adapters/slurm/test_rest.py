"""Against a real socket: what a bad or slow slurmrestd can do to the server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from lattice.adapters.slurm.rest import SlurmRest
from lattice.base.errors import ConfigurationError, Unavailable

Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(path: Path, answering: Answering) -> AsyncIterator[list[bytes]]:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            asked.append(request)
            await answering(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        yield asked


def saying(status: str, body: bytes = b"{}", extra: str = "") -> Answering:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "sock"


async def test_a_question_goes_over_the_unix_socket(socket: Path) -> None:
    async with listening(socket, saying("200 OK", b'{"jobs": []}')) as asked:
        rest = SlurmRest(f"unix:{socket}")
        reply = await rest.get("/slurm/v0.0.38/jobs", {"update_time": "7"}, timeout_s=60)
        await rest.aclose()
    assert (reply.status, reply.body) == (200, b'{"jobs": []}')
    assert asked[0].startswith(b"GET /slurm/v0.0.38/jobs?update_time=7 HTTP/1.1\r\n")


async def test_query_values_are_encoded_as_slurmrestd_needs_them(socket: Path) -> None:
    async with listening(socket, saying("200 OK")) as asked:
        rest = SlurmRest(f"unix:{socket}")
        await rest.get(
            "/jobs", {"step": "1,2_3", "t": "00:26", "het": "4+1", "a": "b&c=d"}, timeout_s=60
        )
        await rest.aclose()
    assert b"?step=1%2C2_3&t=00%3A26&het=4%2B1&a=b%26c%3Dd " in asked[0]


async def test_the_token_is_read_again_when_its_file_changes(socket: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with listening(socket, saying("200 OK")) as asked:
        rest = SlurmRest(f"unix:{socket}", user="lattice", token_file=token)
        await rest.get("/ping", timeout_s=60)
        token.with_name("next").write_text("SLURM_JWT=second")
        token.with_name("next").replace(token)
        await rest.get("/ping", timeout_s=60)
        await rest.aclose()
    assert b"x-slurm-user-name: lattice" in asked[0].lower()
    assert b"x-slurm-user-token: first\r\n" in asked[0].lower()
    assert b"x-slurm-user-token: second\r\n" in asked[1].lower()


async def test_no_token_is_sent_where_none_is_configured(socket: Path) -> None:
    async with listening(socket, saying("200 OK")) as asked:
        rest = SlurmRest(f"unix:{socket}")
        await rest.get("/ping", timeout_s=60)
        await rest.aclose()
    assert b"slurm-user" not in asked[0].lower()


async def test_a_missing_token_file_is_unavailable_and_says_so(
    socket: Path, tmp_path: Path
) -> None:
    rest = SlurmRest(f"unix:{socket}", token_file=tmp_path / "nothing")
    with pytest.raises(Unavailable, match="No such file"):
        await rest.get("/ping", timeout_s=60)
    await rest.aclose()


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_not_followed(socket: Path, status: str) -> None:
    extra = "location: http://169.254.169.254/latest\r\n"
    async with listening(socket, saying(status, b"", extra)) as asked:
        rest = SlurmRest(f"unix:{socket}")
        with pytest.raises(Unavailable, match="redirect"):
            await rest.get("/ping", timeout_s=60)
        await rest.aclose()
    assert len(asked) == 1


async def test_not_modified_is_an_answer(socket: Path) -> None:
    async with listening(socket, saying("304 Not Modified", b"")):
        rest = SlurmRest(f"unix:{socket}")
        assert (await rest.get("/jobs", timeout_s=60)).status == 304
        await rest.aclose()


async def test_a_too_large_answer_is_cut_off(socket: Path) -> None:
    async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    async with listening(socket, endless):
        rest = SlurmRest(f"unix:{socket}")
        with pytest.raises(Unavailable, match="larger than 1 MiB"):
            await rest.get("/jobs", timeout_s=60, limit_bytes=1024 * 1024)
        await rest.aclose()


async def _give_up_a_silent_slurmrestd(socket: Path) -> float:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with listening(socket, silent):
        rest = SlurmRest(f"unix:{socket}")
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="no answer"):
            await rest.get("/jobs", timeout_s=0.2)
        took_s = asyncio.get_running_loop().time() - begun
        await rest.aclose()
        return took_s


async def test_a_silent_slurmrestd_is_given_up(socket: Path) -> None:
    await _give_up_a_silent_slurmrestd(socket)


@pytest.mark.timing
async def test_a_silent_slurmrestd_is_given_up_within_two_seconds(socket: Path) -> None:
    assert await _give_up_a_silent_slurmrestd(socket) < 2


async def test_dripping_bytes_do_not_stretch_the_time(socket: Path) -> None:
    async def dripping(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with listening(socket, dripping):
        rest = SlurmRest(f"unix:{socket}")
        with pytest.raises(Unavailable, match="no answer"):
            await rest.get("/jobs", timeout_s=0.3)
        await rest.aclose()


@pytest.mark.parametrize(
    "said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab"]
)
async def test_a_broken_connection_is_unavailable(socket: Path, said: bytes) -> None:
    async def broken(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async with listening(socket, broken):
        rest = SlurmRest(f"unix:{socket}")
        with pytest.raises(Unavailable, match="can't be reached"):
            await rest.get("/jobs", timeout_s=60)
        await rest.aclose()


async def test_nobody_listening_is_unavailable_with_a_hint(socket: Path) -> None:
    rest = SlurmRest(f"unix:{socket}")
    with pytest.raises(Unavailable) as caught:
        await rest.get("/jobs", timeout_s=60)
    assert str(socket) in caught.value.message
    assert caught.value.hint == "Is slurmrestd running, and may the server open that address?"
    await rest.aclose()


@pytest.mark.parametrize("text", ["", "two words", "line\nline", "\xff\xfe"])
async def test_a_file_without_a_token_is_not_sent(socket: Path, tmp_path: Path, text: str) -> None:
    token = tmp_path / "token"
    token.write_text(text, encoding="latin-1")
    async with listening(socket, saying("200 OK")) as asked:
        rest = SlurmRest(f"unix:{socket}", token_file=token)
        with pytest.raises(Unavailable, match="holds no token"):
            await rest.get("/ping", timeout_s=60)
        await rest.aclose()
    assert asked == []


async def test_tls_is_checked(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await saying("200 OK", b'{"jobs": []}')(b"", writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        rest = SlurmRest(f"https://localhost:{port}", ca_file=ca_file)
        assert (await rest.get("/jobs", timeout_s=60)).body == b'{"jobs": []}'
        await rest.aclose()
        stranger = SlurmRest(f"https://localhost:{port}")
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await stranger.get("/jobs", timeout_s=60)
        await stranger.aclose()


@pytest.mark.parametrize(
    "address",
    [
        *("", "/run/sock", "unix:run/sock", "ftp://host", "host:6820", "http://", "http://h:x"),
        *("http://h:6820/path", "http://h:6820?q", "http://user@h:6820", "http://[::1"),
    ],
)
def test_an_address_that_is_none_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ConfigurationError):
        SlurmRest(address)
