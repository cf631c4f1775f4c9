"""Tokens that must be accepted, what a refusal says, and the two verifiers without a provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.access.tokens import LOGIN_HINT, REFUSED, TokenRefused
from lattice.adapters.oidc.keys import KeyCache
from lattice.adapters.oidc.strict import base64url, json_object
from lattice.adapters.oidc.verify import HmacVerifier, JwksVerifier, NoVerifier
from lattice.base.errors import ConfigurationError, status_of
from tests.fakes.identity_provider import (
    AUDIENCE,
    EcSigner,
    HandClock,
    HmacSigner,
    IdentityProvider,
    RsaSigner,
    b64,
    signed,
)
from tests.nesting import DEEP

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize("kind", ["rsa", "ec"])
async def test_a_good_token_gives_its_claims(
    kind: str,
    verifier: JwksVerifier,
    idp: IdentityProvider,
    clock: HandClock,
    rsa_signer: RsaSigner,
    ec_signer: EcSigner,
) -> None:
    signer = rsa_signer if kind == "rsa" else ec_signer
    claims = await verifier.verify(idp.token(signer, clock, preferred_username="alice"))
    assert claims["sub"] == "u-1"
    assert claims["preferred_username"] == "alice"


@pytest.mark.spec("AUTH-2", "AUTH-10")
@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["account", "lattice"]},
        {"exp": -59, "iat": -600},
        {"nbf": 59},
        {"iat": None},
        {"sub": "x" * 255},
        {"sub": "Zoë Müller"},
        {"extra": {"deep": [1, 2.5, None, True]}},
        {"typ": "Bearer"},
        {"typ": "Bearer", "nonce": "Keycloak before 25"},
    ],
    ids=str,
)
async def test_what_the_checks_allow(
    claims: dict[str, Any],
    verifier: JwksVerifier,
    idp: IdentityProvider,
    clock: HandClock,
    ec_signer: EcSigner,
) -> None:
    now = int(clock.now().timestamp())
    moved = {name: now + claims[name] for name in ("exp", "nbf", "iat") if claims.get(name)}
    assert await verifier.verify(idp.token(ec_signer, clock, **{**claims, **moved}))


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize(
    "header",
    [
        {"typ": "at+jwt"},
        {"typ": "application/at+jwt"},
        {"x5t": "abc"},
        {"something": "new"},
        {"typ": None},
    ],
    ids=str,
)
async def test_headers_that_do_no_harm(
    header: dict[str, Any],
    verifier: JwksVerifier,
    idp: IdentityProvider,
    clock: HandClock,
    ec_signer: EcSigner,
) -> None:
    whole = {"alg": "ES256", "kid": "ec-1", "typ": "JWT", **header}
    whole = {name: value for name, value in whole.items() if value is not None}
    token = signed(ec_signer, whole, json.dumps(idp.claims(clock)).encode())
    assert await verifier.verify(token)


@pytest.mark.spec("AUTH-5")
async def test_what_names_itself_an_access_token_may_carry_a_nonce(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    header = {"alg": "ES256", "kid": "ec-1", "typ": "at+JWT"}
    claims = idp.claims(clock, nonce="n", at_hash="a")
    assert await verifier.verify(signed(ec_signer, header, json.dumps(claims).encode()))


@pytest.mark.spec("AUTH-5", "AUTH-11")
@pytest.mark.threat("id-token")
async def test_an_id_token_gets_the_one_answer_and_the_log_the_reason(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    with pytest.raises(TokenRefused) as refusal:
        await verifier.verify(idp.token(ec_signer, clock, nonce="n", at_hash="a"))
    assert str(refusal.value) == REFUSED
    assert refusal.value.hint == LOGIN_HINT
    assert status_of(refusal.value).http == 401
    assert refusal.value.reason == "an ID token: it has nonce, at_hash"


@pytest.mark.spec("AUTH-5")
@pytest.mark.threat("id-token")
async def test_a_site_with_dex_may_accept_tokens_that_are_made_alike(
    cache: KeyCache, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    dex = JwksVerifier(cache, issuer=idp.issuer, audience=AUDIENCE, clock=clock, id_claims=True)
    assert await dex.verify(idp.token(ec_signer, clock, nonce="n", at_hash="a"))
    with pytest.raises(TokenRefused):
        await dex.verify(idp.token(ec_signer, clock, typ="ID"))


@pytest.mark.spec("AUTH-2")
async def test_a_token_without_a_key_id_needs_an_only_key(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    token = signed(ec_signer, {"alg": "ES256"}, json.dumps(idp.claims(clock)).encode())
    assert await verifier.verify(token)
    idp.signers.append(EcSigner.make("ec-2"))
    clock.passed_s += 31
    with pytest.raises(TokenRefused):
        await verifier.verify(idp.token(EcSigner.make("ec-3"), clock))
    with pytest.raises(TokenRefused, match=REFUSED):
        await verifier.verify(token)


@pytest.mark.spec("AUTH-11")
async def test_only_an_otherwise_good_token_is_told_more(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    now = int(clock.now().timestamp())

    async def hint(**claims: Any) -> str:
        with pytest.raises(TokenRefused) as refusal:
            await verifier.verify(idp.token(ec_signer, clock, **claims))
        assert refusal.value.message == str(refusal.value) == REFUSED
        assert status_of(refusal.value).http == 401
        return refusal.value.hint or ""

    expired = await hint(exp=now - 3600)
    assert "2026-11-15T11:00:00Z" in expired
    assert "2026-11-15T12:00:00Z" in expired
    assert "audience mapper" in await hint(aud="account")
    assert "audience mapper" in await hint(aud=None)
    assert await hint(aud="account", exp=now - 3600) == LOGIN_HINT
    assert await hint(aud="account", iss="https://other") == LOGIN_HINT
    assert await hint(nbf=now + 61) == LOGIN_HINT
    stranger = EcSigner.make("ec-1")
    with pytest.raises(TokenRefused) as refusal:
        await verifier.verify(idp.token(stranger, clock, aud="account"))
    assert refusal.value.hint == LOGIN_HINT


@pytest.mark.spec("AUTH-11")
async def test_the_log_learns_which_check_failed(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    for claims, word in (({"aud": "x"}, "aud is 'x'"), ({"iss": "y"}, "iss is 'y'")):
        with pytest.raises(TokenRefused) as refusal:
            await verifier.verify(idp.token(ec_signer, clock, **claims))
        assert word in refusal.value.reason
        assert word not in str(refusal.value)


@pytest.mark.spec("AUTH-2")
async def test_hmac_accepts_its_own_and_nothing_else(
    idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner, cache: KeyCache
) -> None:
    hmac = HmacVerifier(SECRET, audience="lattice", clock=clock)
    assert (await hmac.verify(idp.token(HmacSigner(SECRET), clock, iss=None)))["sub"] == "u-1"
    for bad in (
        idp.token(HmacSigner(SECRET[:-1] + b"x"), clock),
        idp.token(HmacSigner(SECRET), clock, aud="other"),
        idp.token(HmacSigner(SECRET), clock, exp=None),
        idp.token(rsa_signer, clock),
        signed(HmacSigner(SECRET), {"alg": "none"}, json.dumps(idp.claims(clock)).encode()),
    ):
        with pytest.raises(TokenRefused):
            await hmac.verify(bad)


def test_a_public_key_is_no_shared_secret(clock: HandClock, rsa_signer: RsaSigner) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = rsa_signer.key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ConfigurationError):
        HmacVerifier(pem, audience=None, clock=clock)


async def test_nobody_is_asked_on_a_private_machine() -> None:
    nobody = NoVerifier("alice", user_claim="preferred_username")
    assert nobody.needs_token is False
    for token in ("", "anything"):
        claims = await nobody.verify(token)
        assert dict(claims) == {"sub": "anonymous", "preferred_username": "alice"}


_part = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=60).map(b64),
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "exp", "sub", "aud", "x"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=10),
            st.sampled_from(["ES256", "RS256", "HS256", "none", "ec-1", "rsa-1", "lattice"]),
            st.lists(st.text(max_size=5), max_size=3),
        ),
        max_size=6,
    ).map(lambda value: b64(json.dumps(value).encode())),
)


@pytest.mark.spec("AUTH-2")
async def test_no_text_at_all_gets_anything_but_a_refusal(
    verifier: JwksVerifier, cache: KeyCache, clock: HandClock
) -> None:
    await cache.refresh()
    hmac = HmacVerifier(SECRET, audience="lattice", clock=clock)
    tokens: list[str] = []

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(st.text(max_size=80), st.lists(_part, max_size=5).map(".".join)))
    def collect(token: str) -> None:
        tokens.append(token)

    collect()
    for token in [*tokens, "." * 20_000, "e" * 20_000, b64(b"[" * 9000) + ".e30.e30"]:
        for each in (verifier, hmac):
            with pytest.raises(TokenRefused):
                await each.verify(token)


@pytest.mark.spec("AUTH-2")
async def test_no_change_of_a_good_token_is_accepted(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, ec_signer: EcSigner
) -> None:
    token = idp.token(ec_signer, clock)
    assert await verifier.verify(token)
    changed: set[str] = set()

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, len(token)), st.integers(0, 2), st.sampled_from("Ax9_-.=+/ \n\0é"))
    def collect(place: int, cut: int, insert: str) -> None:
        changed.add(token[:place] + insert + token[place + cut :])
        changed.add(token[:place] + token[place + cut :])

    collect()
    for each in changed - {token}:
        with pytest.raises(TokenRefused):
            await verifier.verify(each)


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@given(st.binary(min_size=1, max_size=100))
def test_base64url_has_one_text_for_each_value(data: bytes) -> None:
    text = b64(data).encode()
    assert base64url(text) == data
    for other in (text + b"=", text + b"\n", b" " + text, text + b"/", b"", text + b"\xff"):
        with pytest.raises(ValueError, match="base64url"):
            base64url(other)
    if len(data) % 3:
        spare = _ALPHABET[_ALPHABET.index(text[-1]) | 1 :][:1]
        with pytest.raises(ValueError, match="canonical"):
            base64url(text[:-1] + spare)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"a":"\xff"}',
        b"[]",
        b"",
        b"{} {}",
        b'{"a":' + DEEP + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_json_that_two_readers_could_read_differently(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is the promise, not its words
        json_object(text)
