"""Ed25519 by Python's own libcrypto: what `cryptography` accepts, and nothing on a failure."""

from __future__ import annotations

import ctypes
import gc
import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from lattice.base import ed25519
from lattice.base.ed25519 import (
    CryptographyKey,
    Libcrypto,
    LibcryptoKey,
    loaded_libcrypto,
    public_key,
)

RFC_8032 = {
    "1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        b"",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
            "b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    "2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        b"\x72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f1"
            "1d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    "3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        b"\xaf\x82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984d"
            "c6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
    "SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").digest(),
        (
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431"
            "e0303dca179c138ac17ad9bef1177331a704"
        ),
    ),
}
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


@pytest.fixture
def library() -> Libcrypto:
    found = loaded_libcrypto()
    assert found is not None, "this Python has no libcrypto that can be called"
    return found


@pytest.fixture(params=["libcrypto", "cryptography"])
def key_of(request: pytest.FixtureRequest, library: Libcrypto) -> Any:
    """Both implementations of the port."""
    if request.param == "cryptography":
        return CryptographyKey
    return lambda raw: LibcryptoKey(library, raw)


@pytest.mark.parametrize("name", RFC_8032)
def test_the_vectors_of_rfc_8032(name: str, key_of: Any) -> None:
    raw, message, signature = RFC_8032[name]
    key = key_of(bytes.fromhex(raw))
    assert key.verify(bytes.fromhex(signature), message)
    assert not key.verify(bytes.fromhex(signature), message + b"\0")


def test_no_signature_with_a_flipped_bit_fits(key_of: Any) -> None:
    raw, message, signature = RFC_8032["3"]
    key, signed = key_of(bytes.fromhex(raw)), bytes.fromhex(signature)
    for bit in range(8 * len(signed)):
        flipped = bytearray(signed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not key.verify(bytes(flipped), message)


def test_a_second_form_of_a_signature_does_not_fit(key_of: Any) -> None:
    """The scalar plus the order of the group gives the same point."""
    raw, message, signature = RFC_8032["3"]
    signed = bytes.fromhex(signature)
    scalar = int.from_bytes(signed[32:], "little") + ORDER
    other = signed[:32] + scalar.to_bytes(32, "little")
    assert not key_of(bytes.fromhex(raw)).verify(other, message)


@pytest.mark.parametrize("size", [0, 1, 32, 63, 65, 128])
def test_a_signature_of_another_length_does_not_fit(size: int, key_of: Any) -> None:
    raw, message, signature = RFC_8032["3"]
    key = key_of(bytes.fromhex(raw))
    assert not key.verify((bytes.fromhex(signature) * 2)[:size], message)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_key_of_another_length_is_refused(size: int, key_of: Any) -> None:
    with pytest.raises(ValueError, match="32"):
        key_of(b"\x05" * size)
    with pytest.raises(ValueError, match="32 bytes"):
        public_key(b"\x05" * size)


def _sum(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def _times(number: int, point: Point) -> Point:
    result = NEUTRAL
    while number:
        if number & 1:
            result = _sum(result, point)
        point, number = _sum(point, point), number >> 1
    return result


def _point(y: int) -> Point | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    return (x, y) if x * x % P == square else None


def _small_order() -> set[int]:
    """The second coordinate of all points of small order: multiples of one with order 8."""
    for y in range(2, 100):
        found = _point(y)
        if found is None:
            continue
        torsion = _times(ORDER, found)
        if _times(4, torsion) != NEUTRAL:
            return {_times(number, torsion)[1] for number in range(8)}
    raise AssertionError("no point of order 8")


def test_keys_of_small_order_are_refused() -> None:
    """With such a key anybody can make a signature that fits."""
    coordinates = _small_order()
    encodings = {each for y in coordinates for each in (y, y + P) if each < 2**255}
    assert len(encodings) == 7
    for each in encodings:
        for sign in (0, 1 << 255):
            raw = (each | sign).to_bytes(32, "little")
            with pytest.raises(ValueError, match="any message"):
                public_key(raw)


@given(
    seed=st.binary(min_size=32, max_size=32),
    message=st.binary(max_size=300),
    flips=st.lists(
        st.tuples(st.sampled_from(("key", "signature", "message")), st.integers(0, 511)),
        max_size=3,
    ),
)
def test_libcrypto_accepts_what_cryptography_accepts(
    seed: bytes, message: bytes, flips: list[tuple[str, int]]
) -> None:
    library = loaded_libcrypto()
    assert library is not None
    secret = Ed25519PrivateKey.from_private_bytes(seed)
    parts = {
        "key": bytearray(secret.public_key().public_bytes_raw()),
        "signature": bytearray(secret.sign(message)),
        "message": bytearray(message),
    }
    for name, bit in flips:
        if parts[name]:
            parts[name][bit // 8 % len(parts[name])] ^= 1 << bit % 8
    raw, signature, text = (bytes(each) for each in parts.values())
    ours = LibcryptoKey(library, raw).verify(signature, text)
    assert ours == CryptographyKey(raw).verify(signature, text)
    if not flips:
        assert ours


@given(raw=st.binary(min_size=32, max_size=32), signature=st.binary(min_size=64, max_size=64))
def test_random_keys_and_signatures_are_treated_alike(raw: bytes, signature: bytes) -> None:
    library = loaded_libcrypto()
    assert library is not None
    ours = LibcryptoKey(library, raw).verify(signature, b"message")
    assert ours == CryptographyKey(raw).verify(signature, b"message")


def _answering(library: Libcrypto, **answers: object) -> Any:
    """The library with other answers of some functions."""
    functions = dict(vars(library))
    for name, answer in answers.items():
        functions[name] = lambda *_, answer=answer: answer
    return SimpleNamespace(**functions)


@pytest.mark.parametrize(
    "answers",
    [{"new_context": None}, {"begin": 0}, {"begin": -1}, {"begin": -2}, {"verify": 0},
     {"verify": -1}, {"verify": 2}, {"verify": None}],
    ids=str,
)  # fmt: skip
def test_no_failure_of_a_call_accepts_a_signature(
    library: Libcrypto, answers: dict[str, object]
) -> None:
    raw, message, signature = RFC_8032["2"]
    failing = _answering(library, **answers)
    assert not LibcryptoKey(failing, bytes.fromhex(raw)).verify(bytes.fromhex(signature), message)


def test_a_key_that_the_library_refuses_is_no_key(library: Libcrypto) -> None:
    with pytest.raises(ValueError, match="refuses"):
        LibcryptoKey(_answering(library, new_key=None), b"\x05" * 32)


@pytest.mark.parametrize("answers", [{"verify": 1}, {"verify": 0}, {"new_key": None}], ids=str)
def test_a_library_that_fails_its_test_is_not_used(
    library: Libcrypto, answers: dict[str, object]
) -> None:
    assert library.works()
    assert not Libcrypto.works(_answering(library, **answers))


def test_without_a_library_cryptography_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, message, signature = RFC_8032["2"]
    assert isinstance(public_key(bytes.fromhex(raw)), LibcryptoKey)
    monkeypatch.setattr(ed25519, "_LIBRARY_USERS", ("no_such_module", "array"))
    monkeypatch.setattr(ed25519, "loaded_libcrypto", loaded_libcrypto.__wrapped__)
    key = public_key(bytes.fromhex(raw))
    assert isinstance(key, CryptographyKey)
    assert key.verify(bytes.fromhex(signature), message)


def test_no_error_stays_for_tls_to_find(library: Libcrypto) -> None:
    raw, message, signature = RFC_8032["2"]
    crypto = ctypes.CDLL(__import__("_hashlib").__file__)
    crypto.ERR_peek_error.restype = ctypes.c_ulong
    wrong = bytearray(bytes.fromhex(signature))
    wrong[0] ^= 1
    for each in (wrong, wrong[:32] + b"\xff" * 32):
        assert not LibcryptoKey(library, bytes.fromhex(raw)).verify(bytes(each), message)
        assert crypto.ERR_peek_error() == 0


def test_a_key_is_freed_once(library: Libcrypto) -> None:
    freed: list[int] = []
    counting = _answering(library)
    counting.free_key = freed.append
    key = LibcryptoKey(counting, bytes.fromhex(RFC_8032["1"][0]))
    pointer = key._key
    del key
    gc.collect()
    assert freed == [pointer]
    library.free_key(pointer)
