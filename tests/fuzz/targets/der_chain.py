"""Certificates and keys in DER, as a Workload API sends them.

- Any bytes are read or refused with `BadDer`; no other exception escapes.
- What is read has every byte of the data, in its order, and nothing else.
- A certificate that the library reads is read as exactly that one.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from lattice.adapters.spiffe.der import BadDer, certificates_pem, key_pem
from tests.fakes.spire import SpiffeAuthority

TOKENS = (
    b"0\x00",
    b"0\x80",
    b"0\x81\x80",
    b"0\x82\x01\x00",
    b"0\x83\x01\x00\x00",
    b"0\x84",
    b"1\x00",
)
_END = "-----END CERTIFICATE-----\n"


def seeds() -> Iterable[bytes]:
    made = SpiffeAuthority(intermediate=True).node("n1")
    yield made.chain
    yield made.key
    yield made.chain[:-1]
    yield b"0\x03\x02\x01\x01" * 3
    yield from TOKENS


def try_one(data: bytes) -> None:
    try:
        pem = certificates_pem(data)
    except BadDer:
        pem = ""
    if pem:
        parts = [ssl.PEM_cert_to_DER_cert(each + _END) for each in pem.split(_END)[:-1]]
        assert b"".join(parts) == data
    try:
        only = x509.load_der_x509_certificate(data)
    except ValueError:
        only = None
    if only is not None:
        assert pem == only.public_bytes(Encoding.PEM).decode()
    try:
        key = key_pem(data)
    except BadDer:
        return
    assert ssl.PEM_cert_to_DER_cert(key.replace("PRIVATE KEY", "CERTIFICATE")) == data
