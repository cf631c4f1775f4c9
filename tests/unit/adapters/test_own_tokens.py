"""Tokens that the servers issue themselves, and every forgery of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from lattice.access.tokens import REFUSED, TokenRefused
from lattice.adapters.own_tokens import OwnOrElse, OwnTokens
from lattice.base.signatures import KeyRing, SigningKey
from tests.fakes.identity_provider import b64
from tests.fakes.manual_clock import ManualClock

KEY = SigningKey.generate()
HEADER = {"alg": "EdDSA", "kid": KEY.name, "typ": "lattice-sign-in+jwt"}


def tokens(clock: ManualClock, key: SigningKey = KEY, **other: Any) -> OwnTokens:
    terms: dict[str, Any] = {
        "audience": "lab-1",
        "lifetime": timedelta(hours=1),
        "user_claim": "preferred_username",
        "administrators": frozenset({"root"}),
    }
    return OwnTokens(key, KeyRing([KEY.public]), clock, **(terms | other))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def written(header: Mapping[str, Any], claims: Mapping[str, Any] | bytes, key: SigningKey) -> str:
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    signed = f"{b64(json.dumps(header).encode())}.{b64(body)}"
    return f"{signed}.{b64(key.sign(signed.encode()))}"


def good_claims(clock: ManualClock) -> dict[str, Any]:
    now = int(clock.now().timestamp())
    return {"iss": "lattice", "aud": "lab-1", "sub": "munge:bob", "iat": now, "exp": now + 60}


@pytest.mark.spec("TRY-4", "AUTH-2")
@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ({"alg": "none"}, {}),
        ({"alg": "HS256"}, {}),
        ({"typ": "JWT"}, {}),
        ({"kid": "0" * 16}, {}),
        ({"kid": None}, {}),
        ({"jwk": {"kty": "OKP"}}, {}),
        ({"crit": ["exp"]}, {}),
        ({}, {"iss": "someone"}),
        ({}, {"aud": "lab-2"}),
        ({}, {"aud": ["lab-1"]}),
        ({}, {"exp": 0}),
        ({}, {"exp": 1e308}),
        ({}, {"exp": True}),
        ({}, {"exp": "9999999999"}),
        ({}, {"exp": None}),
    ],
)
def test_a_token_with_another_header_or_claim(
    clock: ManualClock, header: dict[str, Any], claims: dict[str, Any]
) -> None:
    made = written(HEADER | header, good_claims(clock) | claims, KEY)
    with pytest.raises(TokenRefused) as refusal:
        tokens(clock).verify(made)
    assert refusal.value.message == REFUSED


@pytest.mark.spec("TRY-4", "AUTH-2")
def test_a_token_that_another_key_signed(clock: ManualClock) -> None:
    for header in (HEADER, HEADER | {"kid": "f" * 16}):
        made = written(header, good_claims(clock), SigningKey.generate())
        with pytest.raises(TokenRefused):
            tokens(clock).verify(made)


@pytest.mark.spec("TRY-4", "AUTH-2")
def test_each_changed_character_spoils_it(clock: ManualClock) -> None:
    made = tokens(clock).issue("alice", "munge")[0]
    for place in range(len(made)):
        other = made[:place] + ("A" if made[place] != "A" else "B") + made[place + 1 :]
        with pytest.raises(TokenRefused):
            tokens(clock).verify(other)
    for text in ("", "a.b", "a.b.c.d", made + ".", made[:-1], "é.é.é", "x" * 9000):
        with pytest.raises(TokenRefused):
            tokens(clock).verify(text)


@pytest.mark.spec("TRY-4", "AUTH-2")
def test_claims_that_are_read_in_two_ways_are_refused(clock: ManualClock) -> None:
    now = int(clock.now().timestamp())
    twice = f'{{"iss":"lattice","aud":"lab-1","sub":"x","sub":"y","exp":{now + 60}}}'
    with pytest.raises(TokenRefused):
        tokens(clock).verify(written(HEADER, twice.encode(), KEY))


@pytest.mark.spec("TRY-4")
def test_it_ends_with_its_lifetime(clock: ManualClock) -> None:
    made = tokens(clock).issue("alice", "munge")[0]
    assert tokens(clock).verify(made)["preferred_username"] == "alice"
    assert made != tokens(clock).issue("alice", "munge")[0]
    clock.advance(3601)
    with pytest.raises(TokenRefused):
        tokens(clock).verify(made)


@pytest.mark.spec("TRY-4")
def test_it_outlives_neither_its_lifetime_nor_the_proof(clock: ManualClock) -> None:
    now = int(clock.now().timestamp())
    for end, lifetime_s in ((now + 60, 60), (now + 10**12, 3600), (now, 0), (now - 60, 0)):
        made, lasts_s = tokens(clock).issue("alice", "slurm", end)
        assert lasts_s == lifetime_s
        if lifetime_s:
            claims = tokens(clock).verify(made)
            assert (claims["sub"], claims["exp"]) == ("slurm:alice", now + lifetime_s)
        else:
            with pytest.raises(TokenRefused):
                tokens(clock).verify(made)


@pytest.mark.spec("TRY-4", "AUTH-4")
def test_the_role_is_that_of_the_configuration_today(clock: ManualClock) -> None:
    made = tokens(clock).issue("root", "munge")[0]
    assert tokens(clock).verify(made)["lattice_role"] == "system-admin"
    assert "lattice_role" not in tokens(clock, administrators=frozenset()).verify(made)
    assert "lattice_role" not in tokens(clock).verify(tokens(clock).issue("alice", "munge")[0])


class Other:
    needs_token = True

    async def verify(self, token: str) -> Mapping[str, Any]:
        return {"sub": token}


@pytest.mark.spec("TRY-4", "AUTH-2")
async def test_each_token_goes_to_its_own_verifier(clock: ManualClock) -> None:
    own = tokens(clock)
    both, alone = OwnOrElse(own, Other()), OwnOrElse(own, None)
    made = own.issue("alice", "munge")[0]
    assert (await both.verify(made))["sub"] == "munge:alice"
    assert (await both.verify("another"))["sub"] == "another"
    assert (await alone.verify(made))["sub"] == "munge:alice"
    with pytest.raises(TokenRefused):
        await alone.verify("another")
