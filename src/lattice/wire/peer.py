"""Reads the identity of a peer from its certificate, strictly: exactly one URI of ours.

TLS has verified the signature of the cluster's authority before. Revocation is checked elsewhere.
This module only refuses to guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.base.errors import LoginRequired, PermissionRefused
from lattice.domain.peer import BadName, PeerIdentity, read_uri

_LARGEST_BYTES = 64 * 1024
_GENERATION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


class Context(Protocol):
    """The part of gRPC's server context that is used."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]: ...


def peer_of(context: Context | Any) -> PeerIdentity:
    """The peer of an rpc on the agents' listener.

    Raises `LoginRequired` without a certificate, `PermissionRefused` for an invalid one.
    """
    shown = context.auth_context().get("x509_pem_cert", ())
    if len(shown) != 1:
        raise LoginRequired(
            "A certificate of the cluster is needed here.",
            hint="People call api.grpc_listen; this port is for agents and replicas.",
        )
    return read_peer(bytes(shown[0]))


@lru_cache(maxsize=16_384)
def read_peer(pem: bytes) -> PeerIdentity:
    """The holder of a certificate. Raises `PermissionRefused`.

    Cached, because a node shows the same one with every call. Revocation and expiry, which must be
    checked each time, are not checked here.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem[:_LARGEST_BYTES])
        cluster, kind, name = read_uri(_only_uri(certificate))
        _for_a_client(certificate)
        generation = _generation(certificate)
    except BadName as fault:
        raise PermissionRefused(f"The certificate is not accepted: {fault}.") from None
    except ValueError:
        # The parser's own text is about ASN.1 and helps nobody.
        raise PermissionRefused("The certificate is not accepted: it can't be read.") from None
    return PeerIdentity(
        kind=kind,
        name=name,
        cluster=cluster,
        serial=certificate.serial_number,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        generation=generation,
    )


def _only_uri(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise BadName("it names neither a node nor a replica") from None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise BadName("it must carry exactly one URI")
    return uris[0]


def _generation(certificate: x509.Certificate) -> int:
    found = certificate.subject.get_attributes_for_oid(NameOID.GENERATION_QUALIFIER)
    if not found:
        return 0
    text = str(found[0].value)
    if len(found) > 1 or not _GENERATION.fullmatch(text):
        raise BadName("its generation can't be read")
    return int(text)


def _for_a_client(certificate: x509.Certificate) -> None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        raise BadName("it is not made for a client") from None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise BadName("it is not made for a client")
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return
    if basic.ca:
        raise BadName("it is an authority's own")
