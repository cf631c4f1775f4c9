"""The agents' listener over real sockets: who gets in, who does not, what rotation leaves be."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.replica import AuthorityFiles, ReplicaIdentity
from lattice.base.clock import SystemClock
from lattice.domain.peer import server_name
from lattice.wire.peerguard import peer_of
from tests.fakes.certificates import CLUSTER, Pair, authority_files, node_pair, self_signed

HOST = "127.0.0.1"
ECHO, HOLD = "/test.Peer/Echo", "/test.Peer/Hold"


class LatentClock(SystemClock):
    """The machine's time, moved ahead by hand: TLS itself looks at the real one."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> Any:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead.total_seconds()


async def _echo(request: bytes, context: Any) -> bytes:
    return peer_of(context).uri.encode()


async def _hold(requests: Any, context: Any) -> AsyncIterator[bytes]:
    async for each in requests:
        yield each + b" " + peer_of(context).name.encode()


@dataclass
class Site:
    """A replica with its listener, and the authority behind it."""

    files: AuthorityFiles
    clock: LatentClock
    replica: ReplicaIdentity
    port: int

    @property
    def authority(self) -> ClusterAuthority:
        return self.replica.authority

    def node(self, name: str = "n1", life: timedelta = timedelta(days=1)) -> Pair:
        return node_pair(self.authority, name, life)

    @asynccontextmanager
    async def dial(self, pair: Pair | None, bundle: bytes | None = None) -> AsyncIterator[Any]:
        credentials = grpc.ssl_channel_credentials(
            bundle or self.replica.bundle,
            pair.key if pair else None,
            pair.certificate if pair else None,
        )
        options = (("grpc.ssl_target_name_override", server_name(CLUSTER)),)
        async with aio.secure_channel(f"{HOST}:{self.port}", credentials, options) as channel:
            yield channel

    async def ask(self, pair: Pair | None, bundle: bytes | None = None) -> str:
        async with self.dial(pair, bundle) as channel:
            answer: bytes = await channel.unary_unary(ECHO)(b"", timeout=10)
            return answer.decode()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    files = replace(authority_files(tmp_path), trust=tmp_path / "trust.pem")
    files.trust.write_bytes(files.certificate.read_bytes())
    clock = LatentClock()
    replica = ReplicaIdentity(files, "r1", [HOST], clock, lifetime=timedelta(minutes=4))
    server = aio.server()
    methods = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "Hold": grpc.stream_stream_rpc_method_handler(_hold),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Peer", methods),))
    port = server.add_secure_port(f"{HOST}:0", replica.grpc_server_credentials())
    await server.start()
    yield Site(files, clock, replica, port)
    await server.stop(None)


async def _refused(site: Site, pair: Pair | None, bundle: bytes | None = None) -> None:
    with pytest.raises(aio.AioRpcError) as refusal:
        await site.ask(pair, bundle)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.spec("AUTH-9")
async def test_a_node_and_a_replica_of_the_cluster_are_admitted_by_name(site: Site) -> None:
    assert await site.ask(site.node()) == f"lattice://{CLUSTER}/node/n1"
    for name in ("", "r1"):
        async with aio.secure_channel(
            f"localhost:{site.port}",
            site.replica.channel_credentials(),
            site.replica.channel_options(name),
        ) as channel:
            answer = await channel.unary_unary(ECHO)(b"", timeout=10)
        assert answer == f"lattice://{CLUSTER}/replica/r1".encode()


@pytest.mark.spec("AUTH-9")
async def test_a_dialler_who_expects_another_replica_turns_away(site: Site) -> None:
    async with aio.secure_channel(
        f"{HOST}:{site.port}",
        site.replica.channel_credentials(),
        site.replica.channel_options("r2"),
    ) as channel:
        with pytest.raises(aio.AioRpcError):
            await channel.unary_unary(ECHO)(b"", timeout=10)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("authority-key", "network")
async def test_nobody_enters_with_nothing_or_with_what_others_signed(
    site: Site, tmp_path: Path
) -> None:
    other = ClusterAuthority.create(CLUSTER, SystemClock())
    await _refused(site, None)
    await _refused(site, self_signed((f"lattice://{CLUSTER}/node/n1",)))
    await _refused(site, node_pair(other, "n1"))
    own = site.node()
    await _refused(site, Pair(own.certificate, site.node().key))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_an_expired_certificate_is_refused(site: Site) -> None:
    await _refused(site, site.node(life=timedelta(seconds=-60)))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_node_can_not_stand_in_for_a_replica(site: Site) -> None:
    pair = site.node("r1")
    server = aio.server()
    port = server.add_secure_port(
        f"{HOST}:0", grpc.ssl_server_credentials([(pair.key, pair.certificate)])
    )
    await server.start()
    try:
        false_site = Site(site.files, site.clock, site.replica, port)
        await _refused(false_site, site.node())
    finally:
        await server.stop(None)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("network")
async def test_plain_text_and_old_tls_are_refused(site: Site, tmp_path: Path) -> None:
    async with aio.insecure_channel(f"{HOST}:{site.port}") as channel:
        with pytest.raises(aio.AioRpcError) as refusal:
            await channel.unary_unary(ECHO)(b"", timeout=10)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    pair = site.node()
    chain = tmp_path / "n1.pem"
    chain.write_bytes(pair.certificate + pair.key)
    old = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1)
    for version in (*old, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        admitted = await asyncio.to_thread(_shakes_hands, site.port, version, chain)
        assert admitted is (version not in old), version


def _shakes_hands(port: int, version: ssl.TLSVersion, chain: Path) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The lowest level of security, or this side would not even offer the old versions.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(chain)
    context.set_alpn_protocols(["h2"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection((HOST, port), timeout=10) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return secure.version() is not None
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.spec("AUTH-9")
async def test_certificates_rotate_under_an_open_stream(site: Site) -> None:
    first = site.replica.not_after
    async with site.dial(site.node()) as channel:
        call = channel.stream_stream(HOLD)(timeout=30)
        await call.write(b"before")
        assert await call.read() == b"before n1"
        site.clock.ahead = timedelta(minutes=3)
        assert await site.ask(site.node("n2")) == f"lattice://{CLUSTER}/node/n2"
        assert site.replica.not_after > first
        await call.write(b"after")
        assert await call.read() == b"after n1"
        await call.done_writing()
        assert await call.read() is aio.EOF


@pytest.mark.spec("AUTH-9")
async def test_the_authority_itself_is_exchanged_without_a_break(
    site: Site, tmp_path: Path
) -> None:
    """Trust the new beside the old, sign with the new, then let the old go."""
    old, old_pair = site.authority, site.node()
    successor = authority_files(tmp_path, name="next")
    files = site.files
    assert files.trust is not None

    files.trust.write_bytes(successor.certificate.read_bytes())
    assert site.replica.reload()
    assert await site.ask(old_pair)

    files.trust.write_bytes(old.bundle)
    files.certificate.write_bytes(successor.certificate.read_bytes())
    files.key.write_bytes(successor.key.read_bytes())
    assert site.replica.reload()
    new_pair = site.node()
    assert site.authority.bundle != old.bundle
    assert await site.ask(new_pair)
    assert await site.ask(old_pair)

    files.trust.write_bytes(site.authority.bundle)
    assert site.replica.reload()
    assert await site.ask(new_pair)
    await _refused(site, old_pair)


@pytest.mark.spec("AUTH-9")
async def test_files_that_do_not_fit_change_nothing(site: Site, tmp_path: Path) -> None:
    pair = site.node()
    for spoiled in (
        b"nothing",
        authority_files(tmp_path, "other", name="x").certificate.read_bytes(),
    ):
        kept = site.files.certificate.read_bytes()
        site.files.certificate.write_bytes(spoiled)
        assert not site.replica.reload()
        assert await site.ask(pair)
        site.files.certificate.write_bytes(kept)
    site.clock.ahead += timedelta(seconds=10)
    assert await site.ask(pair)
