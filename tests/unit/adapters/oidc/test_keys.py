"""The provider's keys: which are taken, rotation, a provider that is away, and floods."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.access.tokens import TokenRefused
from lattice.adapters.oidc.discovery import DiscoveredProvider
from lattice.adapters.oidc.keys import KeyCache, read_key_set
from lattice.adapters.oidc.verify import JwksVerifier
from lattice.base.errors import Unavailable
from tests.eventually import eventually_async
from tests.fakes.identity_provider import (
    AUDIENCE,
    KEYS,
    EcSigner,
    HandClock,
    IdentityProvider,
    RsaSigner,
    b64,
)


def _set(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


def test_a_key_is_pinned_to_one_algorithm(rsa_signer: RsaSigner, ec_signer: EcSigner) -> None:
    keys = read_key_set(_set(rsa_signer.jwk(), ec_signer.jwk()))
    assert keys.find("rsa-1", "RS256") is not None
    assert keys.find("ec-1", "ES256") is not None
    for kid, algorithm in (("rsa-1", "ES256"), ("ec-1", "RS256"), ("rsa-1", "HS256")):
        assert keys.find(kid, algorithm) is None


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"},
        {"alg": "RS512"},
        {"alg": "RSA-OAEP"},
        {"alg": "HS256"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"kty": "oct"},
        {"kty": "OKP"},
        {"kty": None},
        {"kty": ["RSA"]},
        {"n": 5},
        {"n": ""},
        {"e": b64(b"\x02")},
        {"kid": 7},
        {"kid": "k" * 300},
    ],
    ids=str,
)
def test_an_entry_that_is_not_for_this_is_passed_over(
    change: dict[str, Any], rsa_signer: RsaSigner, ec_signer: EcSigner
) -> None:
    keys = read_key_set(_set({**rsa_signer.jwk(), **change}, 3, None, ec_signer.jwk()))
    assert keys.kids == ("ec-1",)


def test_weak_and_other_keys_are_passed_over(ec_signer: EcSigner) -> None:
    short = RsaSigner.make("short", 1024)
    other = EcSigner.make("p384", ec.SECP384R1())
    off_curve = {**ec_signer.jwk(), "kid": "off", "y": b64(b"\x01" * 32)}
    assert read_key_set(_set(short.jwk(), other.jwk(), off_curve, ec_signer.jwk())).kids == (
        "ec-1",
    )
    with pytest.raises(ValueError, match="no key"):
        read_key_set(_set(short.jwk(), other.jwk()))


def test_a_private_key_in_the_set_is_only_its_public_half(ec_signer: EcSigner) -> None:
    secret = ec_signer.key.private_numbers().private_value.to_bytes(32, "big")
    keys = read_key_set(_set({**ec_signer.jwk(), "d": b64(secret)}))
    key = keys.find("ec-1", "ES256")
    assert key is not None
    assert key.is_private is False


@given(st.binary(max_size=200))
def test_any_bytes_are_a_set_or_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the kind is the promise, not its words
        read_key_set(data)


_entry = st.dictionaries(
    st.sampled_from(["kty", "kid", "n", "e", "crv", "x", "y", "use", "alg", "key_ops", "d"]),
    st.one_of(
        st.none(),
        st.integers(),
        st.text(max_size=8),
        st.sampled_from(["RSA", "EC", "P-256", "AQAB", "sig", "RS256"]),
        st.binary(min_size=1, max_size=24).map(b64),
        st.lists(st.text(max_size=4), max_size=2),
    ),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_entry, max_size=3))
def test_no_entry_stops_the_good_one(entries: list[dict[str, Any]]) -> None:
    good = _GOOD.jwk()
    keys = read_key_set(_set(*entries, good))
    assert keys.find("good", "ES256") is not None


_GOOD = EcSigner.make("good")


@pytest.mark.spec("AUTH-2")
async def test_rotation(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner
) -> None:
    assert await verifier.verify(idp.token(rsa_signer, clock))
    fresh = EcSigner.make("ec-fresh")
    idp.signers = [fresh, rsa_signer]
    clock.passed_s += 31
    # A token of the new key brings it in at once, and the old one holds while it is published.
    assert await verifier.verify(idp.token(fresh, clock))
    assert await verifier.verify(idp.token(rsa_signer, clock))
    idp.signers = [fresh]
    clock.passed_s += 31
    with pytest.raises(TokenRefused):
        await verifier.verify(idp.token(EcSigner.make("unknown"), clock))
    with pytest.raises(TokenRefused):
        await verifier.verify(idp.token(rsa_signer, clock))


@pytest.mark.spec("AUTH-2")
@pytest.mark.parametrize(
    "answer",
    [
        (500, b"broken"),
        (200, b"<html>"),
        (200, b'{"keys":[]}'),
        (200, b'{"keys":{}}'),
        (200, b"{}"),
        (302, b""),
    ],
    ids=str,
)
async def test_keys_outlive_a_provider_that_is_away(
    answer: tuple[int, bytes],
    verifier: JwksVerifier,
    cache: KeyCache,
    idp: IdentityProvider,
    clock: HandClock,
    rsa_signer: RsaSigner,
) -> None:
    assert await verifier.verify(idp.token(rsa_signer, clock))
    idp.answers[KEYS] = (answer[0], {"Location": idp.issuer}, answer[1])
    for _ in range(5):
        clock.passed_s += 3600
        await cache.refresh()
        assert await verifier.verify(idp.token(rsa_signer, clock))


@pytest.mark.spec("AUTH-2")
async def test_before_the_first_keys_no_token_is_judged(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner
) -> None:
    idp.answers[KEYS] = (503, {}, b"")
    honest = [verifier.verify(idp.token(rsa_signer, clock)) for _ in range(20)]
    for each in await asyncio.gather(*honest, return_exceptions=True):
        assert isinstance(each, Unavailable)
    assert idp.asked[KEYS] == 1
    with pytest.raises(TokenRefused):
        await verifier.verify("no.token.at all")


@pytest.mark.spec("AUTH-2")
async def test_who_asks_before_the_provider_has_begun_waits_for_it(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner
) -> None:
    idp.answers[KEYS] = (503, {}, b"")
    with pytest.raises(Unavailable):
        await verifier.verify(idp.token(rsa_signer, clock))
    early = [asyncio.create_task(verifier.verify(idp.token(rsa_signer, clock))) for _ in range(20)]
    await asyncio.sleep(0.1)
    assert idp.asked[KEYS] == 1
    idp.answers.clear()
    assert all(await asyncio.gather(*early))
    assert idp.asked[KEYS] == 2


@pytest.mark.spec("AUTH-2")
async def test_keeping_fresh_needs_nobody_to_ask(
    cache: KeyCache, idp: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def recorded(pause_s: float) -> None:
        pauses.append(pause_s)
        idp.answers = {KEYS: (500, {}, b"")} if len(pauses) == 2 else {}
        if len(pauses) == 4:
            raise asyncio.CancelledError
        await real_sleep(0)

    idp.answers[KEYS] = (500, {}, b"")
    monkeypatch.setattr("lattice.adapters.oidc.keys.asyncio.sleep", recorded)
    with pytest.raises(asyncio.CancelledError):
        await cache.keep_fresh()
    # No keys yet: soon again. Keys: at leisure. A failure with keys held: in between.
    assert pauses == [1.0, 300.0, 30.0, 300.0]


@pytest.mark.spec("AUTH-2")
async def test_one_fetch_in_thirty_seconds_whoever_asks(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner
) -> None:
    assert await verifier.verify(idp.token(rsa_signer, clock))
    stranger = EcSigner.make("stranger")

    async def flood() -> None:
        tokens = [idp.token(EcSigner(f"k{n}", stranger.key), clock) for n in range(200)]
        results = await asyncio.gather(
            *(verifier.verify(each) for each in tokens), return_exceptions=True
        )
        assert all(isinstance(each, TokenRefused) for each in results)

    for passed, expected in ((1, 1), (28, 1), (2, 2), (29, 2), (2, 3)):
        clock.passed_s += passed
        await flood()
        assert idp.asked[KEYS] == expected, clock.passed_s


@pytest.mark.spec("AUTH-2")
async def test_the_honest_do_not_wait_for_the_keys_of_strangers(
    client: httpx2.AsyncClient, idp: IdentityProvider, rsa_signer: RsaSigner
) -> None:
    clock = HandClock()
    cache = KeyCache(DiscoveredProvider(client, idp.issuer).key_set, clock)
    await cache.refresh()
    clock.passed_s = 31.0
    verifier = JwksVerifier(cache, issuer=idp.issuer, audience=AUDIENCE, clock=clock)
    stranger, honest = EcSigner.make("stranger"), idp.token(rsa_signer, clock)
    idp.free.clear()
    waiting: list[asyncio.Task[bool]] = []
    for number in range(300):
        token = idp.token(EcSigner(f"k{number}", stranger.key), clock)
        waiting.append(asyncio.create_task(_swallow(verifier, token)))
        assert await verifier.verify(honest)
        assert not any(each.done() for each in waiting), "the provider has not answered yet"
    idp.free.set()
    assert all(await asyncio.gather(*waiting))
    await cache.aclose()
    assert idp.asked[KEYS] == 2, "the first load and one for all of the flood"


@pytest.mark.timing
@pytest.mark.spec("AUTH-2")
async def test_a_flood_of_unknown_keys_holds_the_honest_up_for_less_than_a_fifth_of_a_second(
    client: httpx2.AsyncClient, idp: IdentityProvider, rsa_signer: RsaSigner
) -> None:
    # Real time, a real slow provider: who waited for it would show a second and more.
    idp.delay_s = 1.0
    clock = _RealTime()
    stranger = EcSigner.make("stranger")
    flooding = [idp.token(EcSigner(f"k{n}", stranger.key), clock) for n in range(3000)]
    honest = idp.token(rsa_signer, clock)
    cache = KeyCache(DiscoveredProvider(client, idp.issuer).key_set, clock)
    await cache.refresh()
    clock.skip_s = 31.0
    verifier = JwksVerifier(cache, issuer=idp.issuer, audience=AUDIENCE, clock=clock)
    quiet = [await _timed(verifier, honest) for _ in range(300)]
    waiting: list[asyncio.Task[bool]] = []
    loud: list[float] = []
    begun = time.monotonic()
    for number, token in enumerate(flooding):
        waiting.append(asyncio.create_task(_swallow(verifier, token)))
        if number % 10 == 0:
            loud.append(await _timed(verifier, honest))
        pause_s = begun + number / 1000 - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
    refused = await asyncio.gather(*waiting)
    await cache.aclose()
    assert all(refused)
    assert idp.asked[KEYS] == 2, "the first load and one for all of the flood"
    # A fifth of what waiting for the provider would cost.
    assert _p99(loud) < 0.2, (_p99(quiet), _p99(loud))


@pytest.mark.spec("AUTH-2")
async def test_a_caller_who_gives_up_spoils_it_for_nobody(
    verifier: JwksVerifier, idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner
) -> None:
    idp.free.clear()
    token = idp.token(rsa_signer, clock)
    first = asyncio.create_task(verifier.verify(token))
    second = asyncio.create_task(verifier.verify(token))
    await eventually_async(lambda: idp.asked)
    first.cancel()
    idp.free.set()
    assert (await second)["sub"] == "u-1"
    assert idp.asked[KEYS] == 1


class _RealTime(HandClock):
    skip_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.skip_s


async def _timed(verifier: JwksVerifier, token: str) -> float:
    begun = time.perf_counter()
    await verifier.verify(token)
    return time.perf_counter() - begun


async def _swallow(verifier: JwksVerifier, token: str) -> bool:
    try:
        await verifier.verify(token)
    except TokenRefused:
        return True
    return False


def _p99(samples: list[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]
