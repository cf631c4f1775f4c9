"""A SPIRE agent for tests: its authority, and a Workload API that speaks SPIFFE's own protocol.

It serves on a unix socket, in this process or as a program:

    python -m tests.fakes.spire SOCKET FOLDER

The program reads SVIDs from the folder and sends them again when they change.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from grpc import aio

from lattice.adapters.spiffe.wire import workload_pb2 as pb
from lattice.adapters.spiffe.wire.workload_pb2_grpc import (
    SpiffeWorkloadAPIServicer,
    add_SpiffeWorkloadAPIServicer_to_server,
)
from lattice.base.clock import Clock, SystemClock

DOMAIN = "example.org"
HOUR = timedelta(hours=1)
_BACKDATED = timedelta(seconds=10)


@dataclass(frozen=True)
class MadeSvid:
    """An SVID as the API sends it."""

    spiffe_id: str
    chain: bytes
    key: bytes

    def message(self, bundle: bytes) -> pb.X509SVID:
        return pb.X509SVID(
            spiffe_id=self.spiffe_id, x509_svid=self.chain, x509_svid_key=self.key, bundle=bundle
        )

    @property
    def leaf_pem(self) -> bytes:
        """The holder's certificate."""
        size = 4 + int.from_bytes(self.chain[2:4], "big")
        return ssl.DER_cert_to_PEM_cert(self.chain[:size]).encode()


class SpiffeAuthority:
    """Signs SVIDs for a trust domain, by an intermediate authority if asked to."""

    def __init__(
        self, domain: str = DOMAIN, clock: Clock | None = None, *, intermediate: bool = False
    ) -> None:
        self.domain = domain
        self._clock = clock or SystemClock()
        self._root, self._key = self._authority(None, None)
        self._signer, self._signer_key = self._root, self._key
        if intermediate:
            self._signer, self._signer_key = self._authority(self._root, self._key)

    @property
    def bundle(self) -> bytes:
        """The root in DER."""
        return self._root.public_bytes(serialization.Encoding.DER)

    @property
    def bundle_pem(self) -> bytes:
        return self._root.public_bytes(serialization.Encoding.PEM)

    def svid(self, path: str, life: timedelta = HOUR, *, domain: str = "") -> MadeSvid:
        """An SVID with this path; `domain` is what it claims."""
        return self.certify(f"spiffe://{domain or self.domain}{path}", life=life)

    def node(self, name: str, life: timedelta = HOUR) -> MadeSvid:
        return self.svid(f"/lattice/node/{name}", life)

    def certify(self, *uris: str, life: timedelta = HOUR) -> MadeSvid:
        """A leaf with any URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = self._clock.now().replace(microsecond=0)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(u) for u in uris])
        leaf = (
            x509.CertificateBuilder()
            .subject_name(_subject("SPIRE"))
            .issuer_name(self._signer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + life) - _BACKDATED)
            .not_valid_after(now + life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(names, critical=False)
            .sign(self._signer_key, hashes.SHA256())
        )
        chain = leaf.public_bytes(serialization.Encoding.DER)
        if self._signer is not self._root:
            chain += self._signer.public_bytes(serialization.Encoding.DER)
        secret = key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return MadeSvid(uris[0], chain, secret)

    def _authority(
        self, issuer: x509.Certificate | None, issuer_key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = self._clock.now().replace(microsecond=0)
        name = _subject("SPIRE root" if issuer is None else "SPIRE intermediate")
        identifier = x509.UniformResourceIdentifier(f"spiffe://{self.domain}")
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer.subject if issuer else name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([identifier]), critical=False)
            .sign(issuer_key or key, hashes.SHA256())
        )
        return made, key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class FakeSpire(SpiffeWorkloadAPIServicer):
    """The API. `give` sets what workloads get; every open stream gets it at once."""

    def __init__(self, authority: SpiffeAuthority) -> None:
        self.authority = authority
        self.calls = 0
        self._svids: tuple[MadeSvid, ...] = ()
        self._bundles = {f"spiffe://{authority.domain}": authority.bundle}
        self._changed = asyncio.Event()
        self._raw: pb.X509SVIDResponse | None = None

    def give(self, *svids: MadeSvid) -> None:
        """None at all: the caller is not entitled to any."""
        self._svids, self._raw = svids, None
        self._notify()

    def give_raw(self, response: pb.X509SVIDResponse) -> None:
        """Send this, right or wrong."""
        self._raw = response
        self._notify()

    def give_bundles(self, bundles: dict[str, bytes]) -> None:
        self._bundles = bundles
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def FetchX509SVID(self, _request: pb.X509SVIDRequest, context: Any) -> Any:  # noqa: N802
        await _check_header(context)
        self.calls += 1
        while True:
            changed = self._changed
            if self._raw is None and not self._svids:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no identity issued")
            bundle = self.authority.bundle
            yield self._raw or pb.X509SVIDResponse(
                svids=[each.message(bundle) for each in self._svids]
            )
            await changed.wait()

    async def FetchX509Bundles(self, _request: pb.X509BundlesRequest, context: Any) -> Any:  # noqa: N802
        await _check_header(context)
        while True:
            changed = self._changed
            yield pb.X509BundlesResponse(bundles=self._bundles)
            await changed.wait()

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[str]:
        """Serve until the context ends; yields the gRPC target."""
        server = aio.server()
        add_SpiffeWorkloadAPIServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield f"unix:{socket}"
        finally:
            await server.stop(0)


async def _check_header(context: Any) -> None:
    sent = dict(context.invocation_metadata() or ())
    if sent.get("workload.spiffe.io") != "true":
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "security header missing")


def write_svid(folder: Path, svid: MadeSvid, bundle: bytes) -> None:
    """For the program: the SVID that it sends from now on."""
    message = pb.X509SVIDResponse(svids=[svid.message(bundle)])
    new = folder / ".svid.new"
    new.touch(mode=0o600)
    new.write_bytes(message.SerializeToString())
    new.replace(folder / "svid")


async def _main(socket: Path, folder: Path) -> None:
    spire = FakeSpire(SpiffeAuthority())
    socket.unlink(missing_ok=True)
    async with spire.serving(socket):
        socket.chmod(0o666)
        stamp = None
        while True:
            try:
                found = (folder / "svid").stat().st_ino
                if found != stamp:
                    stamp = found
                    raw = (folder / "svid").read_bytes()
                    spire.give_raw(pb.X509SVIDResponse.FromString(raw))
            except FileNotFoundError:
                pass
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
