"""AES-256-GCM by Python's own libcrypto: what `cryptography` makes, and nothing on a failure."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from lattice.base import aes_gcm as module
from lattice.base.aes_gcm import (
    Aead,
    BadTag,
    CryptographyGcm,
    LibcryptoCiphers,
    LibcryptoGcm,
    aes_gcm,
    derived_key,
)

KEY = "feffe9928665731c6d6a8f9467308308" * 2
NONCE = "cafebabefacedbaddecaf888"
TEXT = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
CIPHERED = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
)
NIST = {
    "13": ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    "14": (
        "00" * 32,
        "00" * 12,
        "00" * 16,
        "",
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
    ),
    "15": (KEY, NONCE, TEXT, "", CIPHERED + "b094dac5d93471bdec1a502270e3cc6c"),
    "16": (
        KEY,
        NONCE,
        TEXT[:120],
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        CIPHERED[:120] + "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
}


def by_libcrypto(key: bytes) -> Aead:
    library = module._loaded()
    assert library is not None, "the tests run where libcrypto can be called"
    return LibcryptoGcm(library, key)


CIPHERS = {"libcrypto": by_libcrypto, "cryptography": CryptographyGcm}


@pytest.fixture(params=CIPHERS)
def cipher_of(request: pytest.FixtureRequest) -> Any:
    return CIPHERS[request.param]


@pytest.mark.parametrize("case", NIST)
def test_the_vectors_of_the_specification(cipher_of: Any, case: str) -> None:
    key, nonce, text, associated, sealed = map(bytes.fromhex, NIST[case])
    assert cipher_of(key).seal(nonce, text, associated) == sealed
    assert cipher_of(key).open(nonce, sealed, associated) == text


@given(
    key=st.binary(min_size=32, max_size=32),
    nonce=st.binary(min_size=12, max_size=12),
    text=st.binary(max_size=5000),
    associated=st.binary(max_size=300),
)
def test_both_libraries_agree(key: bytes, nonce: bytes, text: bytes, associated: bytes) -> None:
    sealed = by_libcrypto(key).seal(nonce, text, associated)
    assert sealed == AESGCM(key).encrypt(nonce, text, associated)
    assert by_libcrypto(key).open(nonce, sealed, associated) == text


@given(at=st.integers(min_value=0, max_value=8 * 76 - 1))
def test_one_changed_bit_is_refused(at: int) -> None:
    key, nonce, text, associated, sealed = map(bytes.fromhex, NIST["16"])
    del text
    changed = bytearray(sealed)
    changed[at // 8] ^= 1 << at % 8
    for cipher in (by_libcrypto(key), CryptographyGcm(key)):
        with pytest.raises(BadTag):
            cipher.open(nonce, bytes(changed), associated)


def test_another_nonce_key_or_associated_data_is_refused(cipher_of: Any) -> None:
    key, nonce, _, associated, sealed = map(bytes.fromhex, NIST["16"])
    for each in (
        (key, bytes(12), sealed, associated),
        (bytes(32), nonce, sealed, associated),
        (key, nonce, sealed, b""),
        (key, nonce, sealed, associated + b"\0"),
        (key, nonce, sealed[:-1], associated),
        (key, nonce, sealed[:15], associated),
        (key, nonce, b"", associated),
    ):
        with pytest.raises(BadTag):
            cipher_of(each[0]).open(*each[1:])


def test_wrong_sizes_are_refused(cipher_of: Any) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        cipher_of(bytes(16))
    with pytest.raises(ValueError, match="12 bytes"):
        cipher_of(bytes(32)).seal(bytes(16), b"", b"")
    with pytest.raises(ValueError, match="12 bytes"):
        cipher_of(bytes(32)).open(b"", bytes(16), b"")


def test_large_texts_and_zeros_inside(cipher_of: Any) -> None:
    text = bytes(range(256)) * 40_000
    sealed = cipher_of(bytes(32)).seal(bytes(12), text, b"a\0b")
    assert cipher_of(bytes(32)).open(bytes(12), sealed, b"a\0b") == text


def test_a_library_that_accepts_any_tag_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    library = module._loaded()
    assert library is not None
    monkeypatch.setattr(library, "end_open", lambda *_: 1)
    assert not library.works()


def test_a_library_that_refuses_its_calls_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    library = module._loaded()
    assert library is not None
    monkeypatch.setattr(library, "update_seal", lambda *_: 0)
    assert not library.works()
    with pytest.raises(RuntimeError, match="does not encrypt"):
        LibcryptoGcm(library, bytes(32)).seal(bytes(12), b"text", b"")


def test_without_libcrypto_the_package_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = [SimpleNamespace(), OSError("static"), ImportError("none")]

    def library(_: str) -> object:
        each = found.pop()
        if isinstance(each, Exception):
            raise each
        return each

    module._loaded.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", library)
    try:
        assert module._loaded() is None
        assert isinstance(aes_gcm(bytes(32)), CryptographyGcm)
    finally:
        module._loaded.cache_clear()


def test_this_process_uses_the_libcrypto_that_is_loaded() -> None:
    assert isinstance(aes_gcm(bytes(32)), LibcryptoGcm)
    library = module._loaded()
    assert isinstance(library, LibcryptoCiphers)
    assert library.works()


def test_keys_are_derived_as_rfc_5869_says() -> None:
    secret, salt = bytes([0x0B]) * 22, bytes(range(13))
    derived = derived_key(secret, salt, bytes(range(0xF0, 0xFA)))
    assert derived.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
