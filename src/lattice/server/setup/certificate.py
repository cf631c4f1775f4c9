"""The TLS certificate of a server whose site has no authority of its own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.adapters.pki.authority import BACKDATED, private_pem

_AUTHORITY_VALIDITY = timedelta(days=3653)
_VALIDITY = timedelta(days=731)
RENEW_BEFORE = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class TlsPair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def new_authority(cluster: str, now: datetime) -> TlsPair:
    """An authority for the servers of one cluster."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"Lattice servers of {cluster}"[:64])]
    )
    certificate = (
        _builder(name, name, key, now, _AUTHORITY_VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return TlsPair(_pem(certificate), private_pem(key))


def new_certificate(authority: TlsPair, hosts: Iterable[str], now: datetime) -> TlsPair:
    """A certificate for these hosts, with the authority behind it: nodes learn that from it."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    secret = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise TypeError("the authority's key is on no elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys(hosts))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(secret.public_key())
    certificate = (
        _builder(subject, signer.subject, key, now, _VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(secret, hashes.SHA256())
    )
    return TlsPair(_pem(certificate) + authority.certificate, private_pem(key))


def ends(certificate: bytes) -> datetime:
    """When the first certificate of a chain ends. Raises `ValueError`."""
    return x509.load_pem_x509_certificates(certificate)[0].not_valid_after_utc


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    validity: timedelta,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
