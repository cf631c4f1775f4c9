"""Every forgery in the book against the real verifier: each is refused, all with one answer."""

from __future__ import annotations

import json

import pytest

from lattice.access.tokens import LOGIN_HINT, REFUSED, TokenRefused
from lattice.adapters.oidc.keys import KeyCache
from lattice.adapters.oidc.verify import JwksVerifier
from tests.fakes.forged_tokens import FORGERIES, Forge, hs256
from tests.fakes.identity_provider import EcSigner, HandClock, IdentityProvider, RsaSigner, b64


@pytest.fixture
def forge(
    idp: IdentityProvider, clock: HandClock, rsa_signer: RsaSigner, ec_signer: EcSigner
) -> Forge:
    return Forge(idp, clock, rsa_signer, ec_signer)


@pytest.mark.spec("AUTH-2", "AUTH-11")
async def test_every_forgery_gets_the_one_answer(
    forge: Forge, verifier: JwksVerifier, cache: KeyCache
) -> None:
    assert await verifier.verify(forge.with_claims()), "the honest token must pass"
    assert await verifier.verify(forge.with_header(forge.rsa)), "the honest token must pass"
    answers = {}
    for name, make in FORGERIES.items():
        try:
            await verifier.verify(make(forge))
        except TokenRefused as refusal:
            answers[name] = (refusal.message, refusal.hint)
        else:
            answers[name] = ("accepted", None)
    wrong = {name: said for name, said in answers.items() if said != (REFUSED, LOGIN_HINT)}
    assert wrong == {}


@pytest.mark.spec("AUTH-2")
async def test_a_shared_key_in_the_key_set_is_never_used(
    forge: Forge, verifier: JwksVerifier, idp: IdentityProvider
) -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    entry = {"kty": "oct", "kid": "shared", "k": b64(secret), "alg": "HS256"}
    keys = [each.jwk() for each in idp.signers]
    idp.answers["/keys"] = (200, {}, json.dumps({"keys": [entry, *keys]}).encode())
    assert await verifier.verify(forge.with_claims())
    with pytest.raises(TokenRefused):
        await verifier.verify(hs256(forge, secret, "shared"))


@pytest.mark.spec("AUTH-2")
async def test_nothing_in_a_token_makes_the_server_ask_anyone(
    forge: Forge, verifier: JwksVerifier, idp: IdentityProvider
) -> None:
    await verifier.verify(forge.with_claims())
    forge.clock.passed_s += 3600
    asked = sum(idp.asked.values())
    for name in (
        "jku",
        "x5u",
        "jwk",
        "x5c of her own",
        "kid is a number",
        "alg none, no signature",
    ):
        with pytest.raises(TokenRefused):
            await verifier.verify(FORGERIES[name](forge))
    assert sum(idp.asked.values()) == asked
