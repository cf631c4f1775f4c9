"""Certificates and keys in DER, as SPIFFE sends them, to PEM. No cryptography."""

from __future__ import annotations

import base64
import ssl
import textwrap
from collections.abc import Iterator

_SEQUENCE = 0x30
_LONG = 0x80
_MOST_LENGTH_BYTES = 3
_MOST = 32


class BadDer(ValueError):
    """Not a list of certificates in DER; the text gives the reason."""


def certificates_pem(data: bytes) -> str:
    """Certificates that follow one another, in PEM. Raises `BadDer`."""
    found = [ssl.DER_cert_to_PEM_cert(each) for each in _parts(data)]
    if not found:
        raise BadDer("there is no certificate")
    if len(found) > _MOST:
        raise BadDer(f"there are more than {_MOST} certificates")
    return "".join(found)


def key_pem(data: bytes) -> str:
    """A private key (PKCS #8) in PEM. Raises `BadDer`."""
    if len(list(_parts(data))) != 1:
        raise BadDer("there is no single key")
    body = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"


def _parts(data: bytes) -> Iterator[bytes]:
    """Each outer sequence, with its head."""
    begin = 0
    while begin < len(data):
        end = begin + _size(data, begin)
        if end > len(data):
            raise BadDer("the data is cut off")
        yield data[begin:end]
        begin = end


def _size(data: bytes, begin: int) -> int:
    """How many bytes the sequence has that begins here."""
    head = data[begin : begin + 2]
    if len(head) < 2 or head[0] != _SEQUENCE:
        raise BadDer("the data is not DER")
    if head[1] < _LONG:
        return 2 + head[1]
    count = head[1] - _LONG
    length = data[begin + 2 : begin + 2 + count]
    if not 0 < count <= _MOST_LENGTH_BYTES or len(length) < count:
        raise BadDer("the data is not DER")
    return 2 + count + int.from_bytes(length, "big")
