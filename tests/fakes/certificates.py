"""Certificates for tests: an authority on disk, and every kind that must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.adapters.pki.authority import ClusterAuthority
from lattice.adapters.pki.replica import AuthorityFiles
from lattice.base.clock import Clock, SystemClock

CLUSTER = "test-0123456789ab"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate with its key, as files hold them."""

    certificate: bytes
    key: bytes


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def request(key: ec.EllipticCurvePrivateKey, name: str = "", uri: str = "") -> bytes:
    """A signing request that names what it is told to."""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if uri:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def node_pair(authority: ClusterAuthority, node: str, life: timedelta = DAY) -> Pair:
    """What a node of the cluster holds."""
    key = new_key()
    return Pair(authority.sign_node(request(key), node, life).pem, key_pem(key))


def self_signed(uris: tuple[str, ...], *, authority: bool = False, usage: bool = True) -> Pair:
    """A certificate nobody vouches for, with any URIs."""
    key = new_key()
    now = SystemClock().now().replace(microsecond=0)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(u) for u in uris])
        builder = builder.add_extension(names, critical=False)
    if usage:
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(uses, critical=False)
    made = builder.sign(key, hashes.SHA256())
    return Pair(made.public_bytes(serialization.Encoding.PEM), key_pem(key))


def authority_files(
    folder: Path, cluster: str = CLUSTER, clock: Clock | None = None, name: str = "ca"
) -> AuthorityFiles:
    """An authority of its own, on disk."""
    made = ClusterAuthority.create(cluster, clock or SystemClock())
    files = AuthorityFiles(folder / f"{name}.pem", folder / f"{name}.key")
    files.certificate.write_bytes(made.bundle)
    files.key.write_bytes(made.key_pem())
    return files
