"""DER to PEM, held against the library."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.spiffe.der import BadDer, certificates_pem, key_pem
from tests.fakes.spire import SpiffeAuthority


def test_a_chain_and_its_key_are_what_the_library_reads() -> None:
    made = SpiffeAuthority(intermediate=True).node("n1")
    chain = x509.load_pem_x509_certificates(certificates_pem(made.chain).encode())
    assert len(chain) == 2
    der = b"".join(each.public_bytes(serialization.Encoding.DER) for each in chain)
    assert der == made.chain
    key = serialization.load_pem_private_key(key_pem(made.key).encode(), None)
    assert key.public_key() == chain[0].public_key()


@pytest.mark.parametrize("data", [b"", b"0", b"0\x80", b"0\x84\0\0\0\1a", b"1\0", b"0\x02a"])
def test_what_is_no_der_is_refused(data: bytes) -> None:
    with pytest.raises(BadDer):
        certificates_pem(data)
    with pytest.raises(BadDer):
        key_pem(data)


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(BadDer, match="more than 32"):
        certificates_pem(b"0\0" * 33)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        certificates_pem(data)
    except BadDer:
        return
    assert data[0] == 0x30
