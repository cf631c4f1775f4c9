"""Verifies tokens: authentic, for this server, still valid. It decides nothing about rights.

The order is: shape, header, key, signature, then all claims together. The key determines the
algorithm, never the token. A token that contains a key, refers to one, or requires an extension is
refused. An ID token shows who signed in at a client; it is not accepted here. Claims are read only
after the signature is verified. A token with exactly one fault, age or audience, gets a specific
hint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from lattice.access.tokens import LOGIN_HINT, TokenRefused
from lattice.adapters.oidc.keys import KeyCache, VerifyingKey
from lattice.adapters.oidc.strict import base64url, json_object
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable

LEEWAY_S = 60
_LARGEST_TOKEN = 16 << 10
_LONGEST_NAME = 255
_LAST_MOMENT = 253_402_300_799  # the end of the year 9999, the last that can be shown
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_ACCESS_TYPES = frozenset({"at+jwt", "application/at+jwt"})
_NOT_ACCESS = frozenset({"id", "refresh", "offline", "logout"})
"""The values of Keycloak's claim `typ` in tokens that are not for resource servers."""
_OF_ID_TOKENS = ("nonce", "at_hash", "c_hash")
_FORBIDDEN = ("crit", "b64", "jku", "jwk", "x5u", "zip", "enc")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The required claims. None: not configured and not checked."""

    issuer: str | None
    audience: str | None
    id_claims: bool = False
    """Accept claims of ID tokens: for a provider that writes them into every token."""


class JwksVerifier:
    """RS256 and ES256 by the keys of the issuer."""

    needs_token = True

    def __init__(
        self, keys: KeyCache, *, issuer: str, audience: str, clock: Clock, id_claims: bool = False
    ) -> None:
        self._keys = keys
        self._expected = Expectation(issuer, audience, id_claims)
        self._clock = clock

    async def verify(self, token: str) -> Mapping[str, Any]:
        """See the port. Waits for the provider only if the key is unknown and a fetch is due."""
        unproven = _Unproven.read(token, ("RS256", "ES256"))
        key = await self._keys.find(unproven.kid, unproven.algorithm)
        if key is None:
            if not self._keys.loaded:
                raise Unavailable(
                    "The identity provider's keys are not known yet.",
                    hint="The provider does not answer the server. Try again in a moment.",
                )
            kid = "none" if unproven.kid is None else ascii(unproven.kid[:40])
            raise TokenRefused(f"no {unproven.algorithm} key with kid {kid}")
        return unproven.proven(key, self._expected, self._clock.now())


class HmacVerifier:
    """HS256 by a shared secret: for development and emergencies."""

    needs_token = True

    def __init__(self, secret: bytes, *, audience: str | None, clock: Clock) -> None:
        try:
            self._key = OctKey.import_key(secret)
        except ValueError as error:
            raise ConfigurationError(f"The secret for HS256 can't be used: {error}.") from None
        self._expected = Expectation(None, audience)
        self._clock = clock

    async def verify(self, token: str) -> Mapping[str, Any]:
        """See the port. Never waits."""
        unproven = _Unproven.read(token, ("HS256",))
        return unproven.proven(self._key, self._expected, self._clock.now())


class NoVerifier:
    """Verifies nothing: for a server that only its own machine reaches. All callers are `user`."""

    needs_token = False

    def __init__(self, user: str, *, user_claim: str) -> None:
        self._claims = {"sub": "anonymous", user_claim: user}

    async def verify(self, token: str) -> Mapping[str, Any]:  # noqa: ARG002 - the port's shape
        """The same claims for every caller, with or without a token."""
        return self._claims


@dataclass(frozen=True, slots=True)
class _Unproven:
    """A parsed token. Nothing in it may be trusted before `proven`."""

    token: str
    algorithm: str
    kid: str | None
    kind: str
    """The header's `typ`, in lower case."""

    @classmethod
    def read(cls, token: str, algorithms: tuple[str, ...]) -> _Unproven:
        if len(token) > _LARGEST_TOKEN or not token.isascii():
            raise TokenRefused("too large or not ASCII")
        parts = token.encode("ascii").split(b".")
        if len(parts) != 3:
            raise TokenRefused("not three parts")
        try:
            header = json_object(base64url(parts[0]))
            base64url(parts[1])
            base64url(parts[2])
        except ValueError as error:
            raise TokenRefused(f"unreadable: {str(error)[:80]}") from None
        return cls(token, *_header_says(header, algorithms))

    def proven(
        self, key: VerifyingKey | OctKey, expected: Expectation, now: datetime
    ) -> Mapping[str, Any]:
        """The claims, after the signature and the claims are verified."""
        registry = jws.JWSRegistry(algorithms=[self.algorithm], strict_check_header=False)
        registry.max_header_length = _LARGEST_TOKEN
        try:
            signed = jws.deserialize_compact(self.token, key, registry=registry)
            claims = json_object(signed.payload or b"")
        except (JoseError, ValueError, TypeError) as error:
            raise TokenRefused(f"signature or payload: {type(error).__name__}") from None
        if fault := _kind_fault(self.kind, claims, expected):
            raise TokenRefused(fault)
        _hold(claims, expected, int(now.timestamp()))
        return claims


def _header_says(
    header: Mapping[str, Any], algorithms: tuple[str, ...]
) -> tuple[str, str | None, str]:
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRefused(f"algorithm {ascii(algorithm)[:40]} is not {' or '.join(algorithms)}")
    for name in _FORBIDDEN:
        if name in header:
            raise TokenRefused(f"header {name}")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused(f"typ {ascii(kind)[:40]}")
    if kid is not None and (not isinstance(kid, str) or not 0 < len(kid) <= _LONGEST_NAME):
        raise TokenRefused("kid is no name")
    return algorithm, kid, kind.lower()


def _kind_fault(kind: str, claims: Mapping[str, Any], expected: Expectation) -> str:
    """Why this is no access token, or an empty string."""
    written = claims.get("typ", "")
    if not isinstance(written, str) or written.lower() in _NOT_ACCESS:
        return f"claim typ is {ascii(written)[:40]}"
    # RFC 9068 uses the header, Keycloak a claim; before version 25 it left the nonce in.
    if kind in _ACCESS_TYPES or written.lower() == "bearer" or expected.id_claims:
        return ""
    found = [name for name in _OF_ID_TOKENS if name in claims]
    return f"an ID token: it has {', '.join(found)}" if found else ""


def _hold(claims: Mapping[str, Any], expected: Expectation, now_s: int) -> None:
    faults = [*_who_faults(claims, expected), *_time_faults(claims, now_s)]
    if not faults:
        return
    hint = LOGIN_HINT
    if [name for name, _ in faults] == ["aud"]:
        hint = _audience_hint(expected.audience or "")
    elif [name for name, _ in faults] == ["expired"]:
        hint = f"The token {faults[0][1]}. {LOGIN_HINT}"
    raise TokenRefused("; ".join(reason for _, reason in faults), hint=hint)


def _who_faults(claims: Mapping[str, Any], expected: Expectation) -> Iterator[tuple[str, str]]:
    if expected.issuer is not None and claims.get("iss") != expected.issuer:
        yield "iss", f"iss is {ascii(claims.get('iss'))[:120]}"
    if expected.audience is not None and not _is_meant_for(claims.get("aud"), expected.audience):
        yield "aud", f"aud is {ascii(claims.get('aud'))[:120]}, without {expected.audience!r}"
    sub = claims.get("sub")
    if not isinstance(sub, str) or not 0 < len(sub) <= _LONGEST_NAME or not sub.isprintable():
        yield "sub", "sub is no name"


def _is_meant_for(audience: object, ours: str) -> bool:
    if isinstance(audience, list):
        return all(isinstance(each, str) for each in audience) and ours in audience
    return isinstance(audience, str) and audience == ours


def _time_faults(claims: Mapping[str, Any], now_s: int) -> Iterator[tuple[str, str]]:
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name)
        if value is None and name != "exp" and name not in claims:
            continue
        # In Python a bool is an int, and a float has values between whole seconds.
        if type(value) is not int or not 0 <= value <= _LAST_MOMENT:
            yield name, f"{name} is no moment in whole seconds"
        elif name == "exp" and now_s >= value + LEEWAY_S:
            yield "expired", f"ran out at {_at(value)}, the server's clock says {_at(now_s)}"
        elif name != "exp" and now_s < value - LEEWAY_S:
            yield name, f"{name} is {_at(value)}, the server's clock says {_at(now_s)}"


def _at(moment_s: int) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _audience_hint(audience: str) -> str:
    return (
        f"The token was made for someone else: its `aud` lacks {audience!r}. Keycloak leaves the "
        "client out of `aud` unless it has an audience mapper: ask your administrator to add one "
        "(docs/operate/identity-provider.md), then run `lattice login`."
    )
