"""Grants: written and read back whole, refused when anything about them is off."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.signatures import BadSignature, KeyRing, SigningKey
from lattice.domain.grant import Act, BadGrant, Grant, read_payload, read_written, to_sign, written

GRANT = Grant(
    id="0" * 32, act=Act.ATTACH, place="n1", subject="s-1", user="alice", job_id=7,
    started=1000, issued=1000, expires=1030,
)  # fmt: skip


@pytest.mark.spec("AUTH-9")
def test_a_signed_grant_reads_back_and_verifies() -> None:
    key = SigningKey.generate()
    text = written(key.name, GRANT.payload(), key.sign(to_sign(GRANT.payload())))
    name, payload, signature = read_written(text)
    KeyRing([SigningKey.generate().public, key.public]).verify(name, to_sign(payload), signature)
    assert read_payload(payload) == GRANT


@pytest.mark.spec("AUTH-9")
def test_another_key_or_another_byte_is_refused() -> None:
    key = SigningKey.generate()
    signature = key.sign(to_sign(GRANT.payload()))
    with pytest.raises(BadSignature):
        KeyRing([SigningKey.generate().public]).verify(key.name, GRANT.payload(), signature)
    with pytest.raises(BadSignature):
        KeyRing([key.public]).verify(key.name, GRANT.payload(), signature)
    other = replace(GRANT, user="bob").payload()
    with pytest.raises(BadSignature):
        KeyRing([key.public]).verify(key.name, to_sign(other), signature)


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize(
    ("grant", "act", "place", "now_s", "words"),
    [
        (GRANT, Act.ATTACH, "n1", 1010.0, ""),
        (GRANT, Act.CANCEL, "n1", 1010.0, "grants attach"),
        (GRANT, Act.ATTACH, "n2", 1010.0, "for n1"),
        (GRANT, Act.ATTACH, "n1", 1036.0, "time"),
        (GRANT, Act.ATTACH, "n1", 994.0, "time"),
        (replace(GRANT, expires=9000), Act.ATTACH, "n1", 1010.0, "too long"),
        (replace(GRANT, expires=1000), Act.ATTACH, "n1", 1000.0, "too long"),
    ],
)
def test_it_holds_for_its_act_at_its_place_in_its_time(
    grant: Grant, act: Act, place: str, now_s: float, words: str
) -> None:
    fault = grant.fault(act, place, now_s)
    assert words in fault
    assert bool(words) == bool(fault)


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": True},
        {"job_id": "7"},
        {"user": None},
        {"act": "everything"},
        {"id": "x" * 32},
        {"digest": "1"},
        {"more": 1},
    ],
)
def test_a_payload_that_is_not_exactly_a_grant_is_refused(change: dict[str, object]) -> None:
    told = json.loads(GRANT.payload()) | change
    with pytest.raises(BadGrant):
        read_payload(json.dumps(told).encode())


@given(st.text(max_size=400) | st.binary(max_size=300).map(lambda raw: raw.decode("latin1")))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        _, payload, _ = read_written(text)
        read_payload(payload)
    except BadGrant:
        pass


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_what_is_written_is_read(payload: bytes, signature: bytes) -> None:
    assert read_written(written("k", payload, signature)) == ("k", payload, signature)
