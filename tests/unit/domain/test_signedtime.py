"""A signed time: read strictly, and never taken for a grant."""

from __future__ import annotations

import json

import pytest

from lattice.domain import grant
from lattice.domain.signedtime import BadTime, SignedTime, is_nonce, read_payload, to_sign

TOLD = SignedTime(place="n1", nonce="0a" * 32, time_ms=1_794_702_411_000)


def test_it_is_read_as_it_was_written() -> None:
    assert read_payload(TOLD.payload()) == TOLD


@pytest.mark.spec("AUTH-9")
def test_what_is_signed_is_never_what_a_grant_would_be() -> None:
    assert to_sign(TOLD.payload()) != grant.to_sign(TOLD.payload())
    with pytest.raises(grant.BadGrant):
        grant.read_payload(TOLD.payload())


@pytest.mark.parametrize(
    "change",
    [
        {"time_ms": 1.5},
        {"time_ms": True},
        {"time_ms": 0},
        {"time_ms": 2**53},
        {"nonce": "0A" * 32},
        {"nonce": "0a" * 31},
        {"nonce": "0a" * 32 + "\n"},
        {"place": 7},
        {"more": ""},
    ],
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadTime):
        read_payload(json.dumps(json.loads(TOLD.payload()) | change).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000])
def test_no_time_at_all(raw: bytes) -> None:
    with pytest.raises(BadTime):
        read_payload(raw)


def test_a_nonce_is_what_a_helper_draws() -> None:
    assert is_nonce("0" * 64)
    assert not is_nonce("0" * 63 + "G")
    assert not is_nonce("")
