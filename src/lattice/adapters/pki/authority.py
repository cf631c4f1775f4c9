"""The cluster's own authority: signs the certificates of nodes and replicas.

Its subject has the cluster's id. It signs only two kinds of certificate: a node's, for a client,
and a replica's, for both ends. The caller gives the name, never the request. A request with another
name is refused; one without a name is accepted.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, UsageError
from lattice.domain.peer import (
    SCHEME,
    BadName,
    Issued,
    PeerKind,
    checked_cluster,
    peer_uri,
    server_name,
)

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_LARGEST_BYTES = 16 * 1024
_CURVES = (ec.SECP256R1, ec.SECP384R1)
_RSA_BITS = range(2048, 4097)


class RequestRefused(UsageError):
    """A signing request that is refused; the text is the reason."""


def requested_key(csr_pem: bytes, node: str, uri: str) -> PublicKey:
    """The key to certify for this node. Raises `RequestRefused`.

    Names in the request are ignored, but other names than this node's are refused.
    """
    if len(csr_pem) > _LARGEST_BYTES:
        raise RequestRefused("The signing request is too large.")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        key = request.public_key()
        genuine = request.is_signature_valid
        names = _names(request)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise RequestRefused("The signing request can't be read.") from None
    if not genuine:
        raise RequestRefused("The signing request is not signed by its own key.")
    if names - {node, uri}:
        raise RequestRefused(f"The signing request names somebody else than {node}.")
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in _RSA_BITS:
        return key
    raise RequestRefused("The key must be P-256, P-384 or RSA of 2048 to 4096 bits.")


def _names(request: x509.CertificateSigningRequest) -> set[str]:
    subject = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = {str(each.value) for each in subject}
    try:
        more = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return names
    uris = more.get_values_for_type(x509.UniformResourceIdentifier)
    return names | {each for each in uris if each.lower().startswith(f"{SCHEME}:")}


BACKDATED = timedelta(minutes=5)
"""How far before its creation a certificate begins, for clocks that are behind."""
AUTHORITY_LIFETIME = timedelta(days=3653)
_ORGANISATION = "Lattice"
_STATEMENT = b"lattice statement 1\n"
"""Goes before a statement, so that its signature fits nothing else."""


class AuthorityRefused(ConfigurationError):
    """The files contain no usable authority; the text is the reason."""


class ClusterAuthority:
    """The authority with its key. `bundle` is its certificate, which others need to trust it."""

    def __init__(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, clock: Clock
    ) -> None:
        self.cluster = cluster_of(certificate)
        if certificate.public_key() != key.public_key():
            raise AuthorityRefused("the key is not that of the certificate")
        self.not_after = certificate.not_valid_after_utc
        self.bundle = certificate.public_bytes(serialization.Encoding.PEM)
        self._certificate = certificate
        self._key = key
        self._clock = clock

    @classmethod
    def create(cls, cluster: str, clock: Clock) -> ClusterAuthority:
        """A new authority in memory. The successor of another has the same cluster."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = clock.now().replace(microsecond=0)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION),
                x509.NameAttribute(NameOID.COMMON_NAME, checked_cluster(cluster)),
            ]
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key, clock)

    @classmethod
    def load(cls, certificate: Path, key: Path, clock: Clock) -> ClusterAuthority:
        """From PEM files. Raises `AuthorityRefused`."""
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            secret = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except OSError as error:
            raise AuthorityRefused(f"{error.filename}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise AuthorityRefused("certificate or key is no PEM that can be read") from None
        if not isinstance(secret, ec.EllipticCurvePrivateKey):
            raise AuthorityRefused(f"{key} holds no key on an elliptic curve")
        return cls(found, secret, clock)

    def key_pem(self) -> bytes:
        """The private key, for the one file that stores it."""
        return private_pem(self._key)

    def sign_node(
        self,
        csr_pem: bytes,
        node: str,
        lifetime: timedelta,
        *,
        after: datetime | None = None,
        generation: int = 0,
    ) -> Issued:
        """A node's certificate for the key in the request. Raises `RequestRefused`.

        `after`: it begins later than this time, so that it differs from earlier ones. `generation`
        is in the subject; 0 leaves it out.
        """
        uri = peer_uri(self.cluster, PeerKind.NODE, node)
        return self._sign(
            requested_key(csr_pem, node, uri),
            _subject(node, generation),
            [x509.UniformResourceIdentifier(uri)],
            [ExtendedKeyUsageOID.CLIENT_AUTH],
            lifetime,
            after,
        )

    def sign_statement(self, statement: bytes) -> bytes:
        """A signature that no certificate has: `is_stated_by` checks it."""
        return self._key.sign(_STATEMENT + statement, ec.ECDSA(hashes.SHA256()))

    def certify_replica(
        self,
        public_key: ec.EllipticCurvePublicKey,
        replica: str,
        hosts: Iterable[str],
        lifetime: timedelta,
    ) -> Issued:
        """A replica's certificate, for serving and for dialling others."""
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(peer_uri(self.cluster, PeerKind.REPLICA, replica)),
            x509.DNSName(server_name(self.cluster)),
            x509.DNSName(server_name(self.cluster, replica)),
            *map(_host, dict.fromkeys(hosts)),
        ]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(public_key, _subject(replica), names, both, lifetime, None)

    def _sign(
        self,
        public_key: PublicKey,
        subject: x509.Name,
        names: Sequence[x509.GeneralName],
        uses: Sequence[x509.ObjectIdentifier],
        lifetime: timedelta,
        after: datetime | None,
    ) -> Issued:
        now = self._clock.now().replace(microsecond=0)
        begin = now - BACKDATED
        if after is not None:
            begin = max(begin, after.replace(microsecond=0) + timedelta(seconds=1))
        end = min(now + lifetime, self.not_after)
        if end <= begin:
            raise AuthorityRefused("the cluster's authority has expired")
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return Issued(pem, certificate.serial_number, end)


def is_stated_by(authorities: bytes, statement: bytes, signature: bytes) -> bool:
    """True if one of these authorities (PEM) signed the statement. Raises `ValueError`."""
    for each in x509.load_pem_x509_certificates(authorities):
        key = each.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            continue
        try:
            key.verify(signature, _STATEMENT + statement, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        return True
    return False


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def new_cluster_id(name: str) -> str:
    """A new unique id that contains the name as far as possible."""
    plain = "".join(each for each in name.lower() if each.isascii() and each.isalnum())[:24]
    return f"{plain or 'cluster'}-{secrets.token_hex(6)}"


def cluster_of(certificate: x509.Certificate) -> str:
    """The cluster of an authority. Raises `AuthorityRefused`."""
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        is_authority = basic.ca
    except x509.ExtensionNotFound:
        is_authority = False
    subject = certificate.subject
    organisations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if (
        not is_authority
        or len(names) != 1
        or [str(o.value) for o in organisations] != [_ORGANISATION]
    ):
        raise AuthorityRefused("the certificate is not that of a Lattice cluster's authority")
    try:
        return checked_cluster(str(names[0].value))
    except BadName as fault:
        raise AuthorityRefused(str(fault)) from None


def read_bundle(pem: bytes, cluster: str) -> bytes:
    """The authorities of one cluster, from a file of one or more. Raises `AuthorityRefused`."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise AuthorityRefused("holds no certificates") from None
    for each in found:
        if cluster_of(each) != cluster:
            raise AuthorityRefused(f"holds an authority of {cluster_of(each)}, not of {cluster}")
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in found)


def _subject(name: str, generation: int = 0) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if generation:
        attributes.append(x509.NameAttribute(NameOID.GENERATION_QUALIFIER, str(generation)))
    return x509.Name(attributes)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
