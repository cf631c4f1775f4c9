"""Both listeners over real sockets while certificates, keys and authorities change under them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme
import uvicorn
from cryptography import x509

from lattice.server.tls import ServerTls, TlsFiles
from tests.eventually import eventually_async

HOST = "127.0.0.1"


class Site:
    """Files of a server and the authorities behind them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.people = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.files = TlsFiles(folder / "server.crt", folder / "server.key", folder / "ca.crt")
        self.serial = 0
        self.new_certificate()
        self.trust(self.people)

    def new_certificate(self) -> None:
        leaf = self.servers.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        _replace(self.files.key, leaf.private_key_pem.bytes())
        _replace(self.files.certificate, chain)
        self.serial = x509.load_pem_x509_certificate(chain).serial_number

    def trust(self, *authorities: trustme.CA) -> None:
        assert self.files.authorities is not None
        data = b"".join(each.cert_pem.bytes() for each in authorities)
        _replace(self.files.authorities, data)

    def client(self, signer: trustme.CA | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.servers.configure_trust(context)
        if signer is not None:
            signer.issue_cert("someone@example.org").configure_cert(context)
        return context


def _replace(file: Path, data: bytes) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.rename(file)


@dataclass
class Running:
    site: Site
    tls: ServerTls
    rest: int
    grpc: int


async def _app(scope: dict[str, object], receive: object, send: Callable[..., object]) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    await send(start)  # type: ignore[misc]
    await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[misc]


async def _echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return context.peer().encode()


@pytest.fixture(params=[False, True], ids=["tls", "mtls"])
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    site = Site(tmp_path)
    tls = ServerTls(site.files, rest_mtls=request.param, grpc_mtls=request.param)
    rest = uvicorn.Server(
        uvicorn.Config(
            _app,
            host=HOST,
            port=0,
            log_config=None,
            lifespan="off",
            ssl_context_factory=lambda *_: tls.http_context(),
        )
    )
    serving = asyncio.create_task(rest._serve())
    while not rest.started:
        await asyncio.sleep(0.01)
    wire = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(_echo)
    wire.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Echo", {"Peer": handler}),)
    )
    grpc_port = wire.add_secure_port(f"{HOST}:0", tls.grpc_credentials())
    await wire.start()
    rest_port = rest.servers[0].sockets[0].getsockname()[1]
    yield Running(site, tls, rest_port, grpc_port)
    rest.should_exit = True
    await wire.stop(None)
    await serving


@pytest.fixture
def mtls(running: Running) -> bool:
    return bool(running.tls._rest_mtls)


def _connect(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[int, ssl.SSLSession | None, bool]:
    """The serial the server shows, once it has let us in; with the session to resume by."""
    plain = socket.create_connection((HOST, port), timeout=10)
    with context.wrap_socket(plain, server_hostname=HOST, session=session) as secure:
        if secure.selected_alpn_protocol() == "h2":
            # The preface; a server that refused our certificate never answers with SETTINGS.
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        else:
            secure.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        if not secure.recv(1):
            raise ConnectionResetError("closed without an answer")
        shown = secure.getpeercert(binary_form=True) or b""
        serial = x509.load_der_x509_certificate(shown).serial_number
        return serial, secure.session, bool(secure.session_reused)


async def serial_at(port: int, context: ssl.SSLContext, protocol: str) -> int:
    context.set_alpn_protocols([protocol])
    return (await asyncio.to_thread(_connect, port, context))[0]


DOORS = [("rest", "http/1.1"), ("grpc", "h2")]


@pytest.mark.spec("OPS-6")
@pytest.mark.parametrize(("door", "protocol"), DOORS)
async def test_a_new_certificate_is_shown_to_new_connections(
    running: Running, mtls: bool, door: str, protocol: str
) -> None:
    site = running.site
    client = site.client(site.people if mtls else None)
    port = getattr(running, door)
    before = site.serial
    assert await serial_at(port, client, protocol) == before
    site.new_certificate()
    assert await serial_at(port, client, protocol) == before, "not before it is loaded"
    assert running.tls.reload()
    assert await serial_at(port, client, protocol) == site.serial != before


@pytest.mark.spec("OPS-6")
async def test_an_open_http_connection_goes_on(running: Running, mtls: bool) -> None:
    site = running.site
    client = site.client(site.people if mtls else None)
    reader, writer = await asyncio.open_connection(HOST, running.rest, ssl=client)
    for _ in range(3):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b"ok"), 60)
        assert answer.startswith(b"HTTP/1.1 200")
        site.new_certificate()
        site.trust(trustme.CA())
        assert running.tls.reload()
    writer.close()
    await writer.wait_closed()


@pytest.mark.spec("OPS-6")
async def test_an_open_grpc_channel_goes_on(running: Running, mtls: bool) -> None:
    site = running.site
    leaf = site.people.issue_cert("service@example.org")
    credentials = grpc.ssl_channel_credentials(
        site.servers.cert_pem.bytes(),
        leaf.private_key_pem.bytes() if mtls else None,
        leaf.cert_chain_pems[0].bytes() if mtls else None,
    )
    async with grpc.aio.secure_channel(f"{HOST}:{running.grpc}", credentials) as channel:
        peer = channel.unary_unary("/test.Echo/Peer")  # type: ignore[call-arg]
        first = await peer(b"", timeout=10)
        site.new_certificate()
        site.trust(trustme.CA())
        assert running.tls.reload()
        # Another connection takes the new terms in; this one is the one it was.
        with pytest.raises((OSError, ssl.SSLError)) if mtls else nullcontext():
            await serial_at(running.grpc, site.client(site.people if mtls else None), "h2")
        assert await peer(b"", timeout=10) == first


@pytest.mark.spec("OPS-6")
@pytest.mark.parametrize("running", [True], indirect=True)
@pytest.mark.parametrize(("door", "protocol"), DOORS)
async def test_authorities_change_for_both_sides(
    running: Running, door: str, protocol: str
) -> None:
    site, port = running.site, getattr(running, door)
    others = trustme.CA(key_type=trustme.KeyType.ECDSA)
    assert await serial_at(port, site.client(site.people), protocol)
    for refused in (site.client(), site.client(others)):
        with pytest.raises((OSError, ssl.SSLError)):
            await serial_at(port, refused, protocol)
    site.trust(others)
    assert running.tls.reload()
    assert await serial_at(port, site.client(others), protocol)
    with pytest.raises((OSError, ssl.SSLError)):
        await serial_at(port, site.client(site.people), protocol)


@pytest.mark.spec("OPS-6")
@pytest.mark.parametrize("running", [True], indirect=True)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("door", "protocol"), DOORS)
async def test_no_old_session_opens_the_door_after_its_authority_went(
    running: Running, door: str, protocol: str, version: ssl.TLSVersion
) -> None:
    site, port = running.site, getattr(running, door)
    client = site.client(site.people)
    client.maximum_version = version
    client.set_alpn_protocols([protocol])
    _, session, _ = await asyncio.to_thread(_connect, port, client)
    _, _, resumed = await asyncio.to_thread(_connect, port, client, session)
    assert resumed or door == "grpc", "the session must be one that opens the door"
    site.trust(trustme.CA())
    assert running.tls.reload()
    with pytest.raises((OSError, ssl.SSLError)):
        await asyncio.to_thread(_connect, port, client, session)


@pytest.mark.spec("OPS-6")
async def test_a_pair_that_does_not_fit_is_refused_and_the_old_one_stays(
    running: Running, mtls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    site = running.site
    client = site.client(site.people if mtls else None)
    before = site.serial
    other = site.servers.issue_cert(HOST)
    _replace(site.files.key, other.private_key_pem.bytes())
    assert not running.tls.reload()
    assert "refused" in caplog.text
    assert "PRIVATE" not in caplog.text
    for door, protocol in DOORS:
        assert await serial_at(getattr(running, door), client, protocol) == before
    site.new_certificate()
    assert running.tls.reload()
    for door, protocol in DOORS:
        assert await serial_at(getattr(running, door), client, protocol) == site.serial


@pytest.mark.spec("OPS-6")
async def test_the_watch_finds_every_way_a_file_can_change(running: Running, mtls: bool) -> None:
    site = running.site
    client = site.client(site.people if mtls else None)
    watching = asyncio.create_task(running.tls.watch(interval_s=0.05))

    async def shown() -> None:
        await eventually_async(
            lambda: serial_at(running.rest, client, "http/1.1"),
            lambda serial: serial == site.serial,
        )

    site.new_certificate()
    await shown()
    # In place, first one file and later the other, as careless tools do.
    leaf = site.servers.issue_cert(HOST)
    chain = leaf.cert_chain_pems[0].bytes()
    site.files.key.write_bytes(leaf.private_key_pem.bytes())
    await asyncio.sleep(0.2)
    site.files.certificate.write_bytes(chain)
    site.serial = x509.load_pem_x509_certificate(chain).serial_number
    await shown()
    # By a link that is turned to another folder, as secret mounts do.
    target = site.folder / "next"
    target.mkdir()
    real = site.files
    site.files = TlsFiles(target / "server.crt", target / "server.key", real.authorities)
    site.new_certificate()
    for old, new in ((real.key, site.files.key), (real.certificate, site.files.certificate)):
        link = old.with_suffix(".link")
        link.symlink_to(new)
        os.replace(link, old)  # noqa: PTH105 - the call secret mounts are made of
    await shown()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.spec("OPS-6")
@pytest.mark.threat("network")
@pytest.mark.parametrize(("door", "protocol"), DOORS)
async def test_plain_text_and_old_versions_are_refused(
    running: Running, mtls: bool, door: str, protocol: str
) -> None:
    port, site = getattr(running, door), running.site
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        answer = await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        answer = b""
    writer.close()
    assert b"HTTP/" not in answer
    client = site.client(site.people if mtls else None)
    _speak_old_versions(client)
    # A server that still spoke them would be understood: this one's refusal is its own.
    async with await _old_server(site) as old:
        assert await serial_at(old.sockets[0].getsockname()[1], client, protocol)
    with pytest.raises((OSError, ssl.SSLError)):
        await serial_at(port, client, protocol)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await serial_at(port, client, protocol) == site.serial


def _speak_old_versions(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1


async def _old_server(site: Site) -> asyncio.Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.files.certificate, site.files.key)
    _speak_old_versions(context)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"ok")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, HOST, 0, ssl=context)
