"""A certificate authority for one lab: made anew at each `up`, valid for a few days.

ECDSA P-256 throughout: generating a key takes a millisecond. Not for any other use.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lab.files import give

_AUTHORITY_DAYS = 30
_LEAF_DAYS = 7
_ALLOWED_SKEW = dt.timedelta(minutes=5)

SERVER_NAMES = ("10.77.0.1", "10.77.0.2", "127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate, its key, and the authority to trust, as files."""

    certificate: Path
    key: Path
    authority: Path


class Authority:
    """Signs leafs into its folder; `load` goes on with the one an earlier program made."""

    def __init__(
        self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate
    ) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path) -> Authority:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name("lattice lab CA")
        builder = _valid_for(x509.CertificateBuilder(), _AUTHORITY_DAYS)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            builder.subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        _write_key(folder / "ca.key", key)
        (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, certificate)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{folder}/ca.key is not an EC key")
        return cls(folder, key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))

    @property
    def certificate(self) -> Path:
        return self._folder / "ca.crt"

    def issue(
        self,
        file_name: str,
        common_name: str,
        *,
        names: tuple[str, ...] = (),
        owner: str | None = None,
        days: float = _LEAF_DAYS,
    ) -> Leaf:
        """A leaf for both ends of TLS; names are host names, addresses or spiffe:// URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _valid_for(x509.CertificateBuilder(), days)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority_key = self._certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        ).value
        identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_key)
        builder = (
            builder.subject_name(_common_name(common_name))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(identifier, critical=False)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        leaf = Leaf(
            self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key", self.certificate
        )
        _write_key(leaf.key, key, owner)
        leaf.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return leaf

    def leaf(self, file_name: str) -> Leaf:
        """The files of a leaf issued before."""
        folder = self._folder
        return Leaf(folder / f"{file_name}.crt", folder / f"{file_name}.key", self.certificate)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _valid_for(builder: x509.CertificateBuilder, days: float) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    end = now + dt.timedelta(days=days)
    return builder.not_valid_before(min(now, end) - _ALLOWED_SKEW).not_valid_after(end)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey, owner: str | None = None) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    if owner is not None:
        give(file, owner)
