"""Every forgery in the book: tokens that no server may accept, by name.

All of them get one answer. `UNSPOKEN` are those that an HTTP header can't carry as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.fakes.identity_provider import (
    EcSigner,
    HandClock,
    HmacSigner,
    IdentityProvider,
    RsaSigner,
    b64,
    signed,
)


class Forge:
    """What a forger has: the provider's public keys, a token of her own, keys of her own."""

    def __init__(
        self, idp: IdentityProvider, clock: HandClock, rsa: RsaSigner, ec: EcSigner
    ) -> None:
        self.idp = idp
        self.clock = clock
        self.rsa = rsa
        self.ec = ec
        self.own_rsa = RsaSigner.make("rsa-1")
        self.own_ec = EcSigner.make("ec-1")

    @property
    def now(self) -> int:
        return int(self.clock.now().timestamp())

    def payload(self, **claims: Any) -> bytes:
        return json.dumps(self.idp.claims(self.clock, **claims)).encode()

    def with_header(self, signer: Any, **header: Any) -> str:
        return signed(
            signer, {"alg": signer.algorithm, "kid": signer.kid, **header}, self.payload()
        )

    def with_claims(self, **claims: Any) -> str:
        return self.idp.token(self.ec, self.clock, **claims)

    def with_payload(self, raw: str) -> str:
        head = json.dumps({"alg": "ES256", "kid": "ec-1"}).encode()
        return signed(self.ec, head, raw.encode())

    def public(self, encoding: Encoding) -> bytes:
        kind = PublicFormat.SubjectPublicKeyInfo
        return self.rsa.key.public_key().public_bytes(encoding, kind)

    def raw_claims(self, **spelled: str) -> str:
        """Claims as JSON text, with some values spelled by hand."""
        good = {name: json.dumps(value) for name, value in self.idp.claims(self.clock).items()}
        pairs = (f'"{name}":{value}' for name, value in {**good, **spelled}.items())
        return "{" + ",".join(pairs) + "}"


def hs256(forge: Forge, secret: bytes, kid: str = "rsa-1") -> str:
    """A token signed with a secret."""
    return signed(HmacSigner(secret), {"alg": "HS256", "kid": kid}, forge.payload())


def _unsigned(forge: Forge, algorithm: str) -> str:
    header = b64(json.dumps({"alg": algorithm, "kid": "rsa-1"}).encode())
    return f"{header}.{b64(forge.payload())}."


FORGERIES: dict[str, Callable[[Forge], str]] = {
    "alg none, no signature": lambda f: _unsigned(f, "none"),
    "alg None": lambda f: _unsigned(f, "None"),
    "alg nOnE with some signature": lambda f: _unsigned(f, "nOnE") + "AAAA",
    "alg RS256, no signature": lambda f: _unsigned(f, "RS256"),
    "alg empty": lambda f: f.with_header(f.ec, alg=""),
    "alg missing": lambda f: signed(f.ec, b'{"kid":"ec-1"}', f.payload()),
    "alg a list": lambda f: f.with_header(f.ec, alg=["ES256"]),
    "HS256 with the public key, PEM": lambda f: hs256(f, f.public(Encoding.PEM)),
    "HS256 with the public key, PEM stripped": lambda f: hs256(f, f.public(Encoding.PEM).strip()),
    "HS256 with the public key, DER": lambda f: hs256(f, f.public(Encoding.DER)),
    "HS256 with the public key, JWK": lambda f: hs256(f, json.dumps(f.rsa.jwk()).encode()),
    "HS256 with the modulus": lambda f: hs256(f, f.rsa.jwk()["n"].encode()),
    "HS256 with nothing": lambda f: hs256(f, b""),
    "HS384 with the public key": lambda f: signed(
        HmacSigner(f.public(Encoding.PEM)), {"alg": "HS384", "kid": "rsa-1"}, f.payload()
    ),
    "RS256 header on the EC key": lambda f: f.with_header(f.ec, alg="RS256"),
    "ES256 header on the RSA key": lambda f: f.with_header(f.rsa, alg="ES256"),
    "EC signature under the RSA kid": lambda f: f.with_header(f.ec, kid="rsa-1"),
    "PS256 header": lambda f: f.with_header(f.rsa, alg="PS256"),
    "RS512 header": lambda f: f.with_header(f.rsa, alg="RS512"),
    "ES256K header": lambda f: f.with_header(f.ec, alg="ES256K"),
    "own RSA key under the provider's kid": lambda f: f.with_header(f.own_rsa, kid="rsa-1"),
    "own EC key under the provider's kid": lambda f: f.with_header(f.own_ec),
    "ES256 signature of zeros": lambda f: (
        f.with_header(f.ec).rpartition(".")[0] + "." + b64(bytes(64))
    ),
    "ES256 signature in DER": lambda f: (
        f.with_header(f.ec).rpartition(".")[0] + "." + b64(b"\x30\x06\x02\x01\x01\x02\x01\x01")
    ),
    "kid is a path": lambda f: f.with_header(f.own_ec, kid="../../dev/null"),
    "kid is SQL": lambda f: f.with_header(f.own_ec, kid="x' UNION SELECT 'AAAA"),
    "kid is a URL": lambda f: f.with_header(f.own_ec, kid="http://169.254.169.254/"),
    "kid is a number": lambda f: f.with_header(f.ec, kid=1),
    "kid is empty": lambda f: f.with_header(f.ec, kid=""),
    "kid is endless": lambda f: f.with_header(f.own_ec, kid="k" * 5000),
    "kid with a NUL": lambda f: f.with_header(f.own_ec, kid="ec-1\0"),
    "jku": lambda f: f.with_header(f.own_ec, jku="http://127.0.0.1:1/keys"),
    "jku on a genuine token": lambda f: f.with_header(f.ec, jku="http://127.0.0.1:1/keys"),
    "x5u": lambda f: f.with_header(f.ec, x5u="http://127.0.0.1:1/chain"),
    "jwk": lambda f: f.with_header(f.own_ec, jwk=f.own_ec.jwk()),
    "jwk on a genuine token": lambda f: f.with_header(f.ec, jwk=f.own_ec.jwk()),
    "x5c of her own": lambda f: f.with_header(f.own_ec, x5c=["AAAA"]),
    "crit unknown": lambda f: f.with_header(f.ec, crit=["x"], x=1),
    "crit empty": lambda f: f.with_header(f.ec, crit=[]),
    "crit b64": lambda f: f.with_header(f.ec, crit=["b64"], b64=False),
    "b64 false": lambda f: f.with_header(f.ec, b64=False),
    "typ of a logout token": lambda f: f.with_header(f.ec, typ="logout+jwt"),
    "typ of a proof": lambda f: f.with_header(f.ec, typ="dpop+jwt"),
    "typ is a number": lambda f: f.with_header(f.ec, typ=5),
    "an ID token with a nonce": lambda f: f.with_claims(nonce="n-0S6_WzA2Mj"),
    "an ID token of the token endpoint": lambda f: f.with_claims(at_hash="MTIzNDU2Nzg5MDEyMzQ1Ng"),
    "an ID token of a hybrid flow": lambda f: f.with_claims(c_hash="LDktKdoQak3Pk0cnXxCltA"),
    "an ID token of Keycloak": lambda f: f.with_claims(typ="ID"),
    "a refresh token of Keycloak": lambda f: f.with_claims(typ="Refresh"),
    "an ID token that names its type by a number": lambda f: f.with_claims(typ=1),
    "an ID token with the claim null": lambda f: f.with_payload(f.raw_claims(nonce="null")),
    "an ID token of Keycloak with the header of an access token": lambda f: signed(
        f.ec, {"alg": "ES256", "kid": "ec-1", "typ": "at+jwt"}, f.payload(typ="ID")
    ),
    "aud a list without us": lambda f: f.with_claims(aud=["account"], iss="https://x"),
    "aud empty list": lambda f: f.with_claims(aud=[], sub=""),
    "aud empty text": lambda f: f.with_claims(aud="", sub=""),
    "aud a longer word": lambda f: f.with_claims(aud="lattice2", sub=""),
    "aud with a space list": lambda f: f.with_claims(aud="x lattice", sub=""),
    "aud an object": lambda f: f.with_claims(aud={"lattice": 1}, sub=""),
    "aud a mixed list": lambda f: f.with_claims(aud=["lattice", 1], sub=""),
    "iss a prefix": lambda f: f.with_claims(iss=f.idp.issuer[:-1]),
    "iss longer": lambda f: f.with_claims(iss=f.idp.issuer + ".evil.example"),
    "iss with a slash": lambda f: f.with_claims(iss=f.idp.issuer + "/"),
    "iss in capitals": lambda f: f.with_claims(iss=f.idp.issuer.upper()),
    "iss a list": lambda f: f.with_claims(iss=[f.idp.issuer]),
    "iss missing": lambda f: f.with_claims(iss=None),
    "exp as text": lambda f: f.with_claims(exp=str(f.now + 300)),
    "exp as float": lambda f: f.with_claims(exp=f.now + 300.5),
    "exp as whole float": lambda f: f.with_payload(f.raw_claims(exp=f"{f.now + 300}.0")),
    "exp 1e308": lambda f: f.with_payload(f.raw_claims(exp="1e308")),
    "exp 1e999": lambda f: f.with_payload(f.raw_claims(exp="1e999")),
    "exp Infinity": lambda f: f.with_payload(f.raw_claims(exp="Infinity")),
    "exp NaN": lambda f: f.with_payload(f.raw_claims(exp="NaN")),
    "exp of 400 digits": lambda f: f.with_payload(f.raw_claims(exp="9" * 400)),
    "exp of 5000 digits": lambda f: f.with_payload(f.raw_claims(exp="9" * 5000)),
    "exp negative": lambda f: f.with_claims(exp=-1),
    "exp true": lambda f: f.with_claims(exp=True),
    "exp null": lambda f: f.with_payload(f.raw_claims(exp="null")),
    "exp missing": lambda f: f.with_claims(exp=None),
    "nbf in the future": lambda f: f.with_claims(nbf=f.now + 3600),
    "nbf as text": lambda f: f.with_claims(nbf=str(f.now)),
    "nbf null": lambda f: f.with_payload(f.raw_claims(nbf="null")),
    "iat in the future": lambda f: f.with_claims(iat=f.now + 3600),
    "iat as float": lambda f: f.with_claims(iat=f.now + 0.5),
    "sub missing": lambda f: f.with_claims(sub=None),
    "sub empty": lambda f: f.with_claims(sub=""),
    "sub a number": lambda f: f.with_claims(sub=7),
    "sub endless": lambda f: f.with_claims(sub="s" * 256),
    "sub with a line break": lambda f: f.with_claims(sub="a\nb"),
    "sub with half a pair": lambda f: f.with_payload(f.raw_claims(sub='"\\ud800"')),
    "alg twice in the header": lambda f: signed(
        f.own_ec, b'{"alg":"none","alg":"ES256","kid":"ec-1"}', f.payload()
    ),
    "kid twice in the header": lambda f: signed(
        f.ec, b'{"alg":"ES256","kid":"x","kid":"ec-1"}', f.payload()
    ),
    "sub twice": lambda f: f.with_payload(f.raw_claims()[:-1] + ',"sub":"root"}'),
    "exp twice": lambda f: f.with_payload(f.raw_claims()[:-1] + f',"exp":{f.now + 9999}}}'),
    "payload a list": lambda f: f.with_payload("[]"),
    "payload not JSON": lambda f: f.with_payload("hello"),
    "payload nested without end": lambda f: f.with_payload('{"a":' + "[" * 9000),
    "header not JSON": lambda f: signed(f.ec, b"{", f.payload()),
    "header a list": lambda f: signed(f.ec, b"[]", f.payload()),
    "padding": lambda f: f.with_claims() + "=",
    "a fourth part": lambda f: f.with_claims() + ".AAAA",
    "five parts, as if encrypted": lambda _: ".".join(["e30"] * 5),
    "two parts": lambda f: f.with_claims().rpartition(".")[0],
    "a space in front": lambda f: " " + f.with_claims(),
    "a line break inside": lambda f: f.with_claims().replace(".", ".\n", 1),
    "standard base64": lambda f: f.with_claims().rpartition(".")[0] + "." + "ab+/" * 22,
    "unused bits in the signature": lambda f: _loose(f.with_claims()),
    "the JSON form": lambda f: json.dumps(
        dict(zip(("protected", "payload", "signature"), f.with_claims().split("."), strict=True))
    ),
    "larger than 16 KiB": lambda f: f.with_claims(pad="x" * (16 << 10)),
    "empty": lambda _: "",
}


def _loose(token: str) -> str:
    # 64 bytes of signature end in a character of which four bits are unused.
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + last[last.index(token[-1]) | 1]


UNSPOKEN = frozenset({"a space in front", "a line break inside", "empty"})
"""In a header the first is a good token, the second two lines, the third no token."""
