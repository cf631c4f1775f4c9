"""Reads a signing request: the key in it, and nothing it would like to be called."""

from __future__ import annotations

from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from lattice.base.errors import UsageError
from lattice.domain.peer import SCHEME

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_LARGEST_BYTES = 16 * 1024
_CURVES = (ec.SECP256R1, ec.SECP384R1)
_RSA_BITS = range(2048, 4097)


class RequestRefused(UsageError):
    """A signing request that can't be honoured; the text says why."""


def requested_key(csr_pem: bytes, node: str, uri: str) -> PublicKey:
    """The key to certify for this node. Raises `RequestRefused`.

    Names in the request are ignored, save that they must not be somebody else's.
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
