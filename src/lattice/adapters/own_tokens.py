"""Tokens that the servers issue themselves, signed with the key of grants (Ed25519, as a JWT).

A caller who has proved to be a Unix user, by MUNGE or by a Slurm token, gets one. Every replica
with the key, or with its public half during an exchange, accepts it. The form is the usual one
(RFC 7519, EdDSA), so that tools can read it.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lattice.access.tokens import OWN_ISSUER, TokenRefused, TokenVerifier
from lattice.adapters.oidc.strict import base64url, json_object
from lattice.base.clock import Clock
from lattice.base.signatures import BadSignature, KeyRing, SigningKey

_TYPE = "lattice-sign-in+jwt"
_ALGORITHM = "EdDSA"
_LARGEST = 4096


class OwnTokens:
    """Issues and verifies tokens for one cluster, the `audience`."""

    def __init__(
        self,
        key: SigningKey,
        ring: KeyRing,
        clock: Clock,
        *,
        audience: str,
        lifetime: timedelta,
        user_claim: str,
        administrators: frozenset[str] = frozenset(),
    ) -> None:
        """`administrators` get the role of a system administrator."""
        self._key = key
        self._ring = ring
        self._clock = clock
        self.audience = audience
        self.lifetime = lifetime
        self._user_claim = user_claim
        self.administrators = administrators

    def issue(self, user: str, origin: str, end: int | None = None) -> tuple[str, int]:
        """A token and its lifetime in seconds. `origin` begins the `sub`.

        `end`: in seconds since 1970, what it must not outlive.
        """
        now = int(self._clock.now().timestamp())
        lifetime_s = int(self.lifetime.total_seconds())
        if end is not None:
            lifetime_s = max(0, min(lifetime_s, end - now))
        claims: dict[str, Any] = {
            "iss": OWN_ISSUER,
            "aud": self.audience,
            "sub": f"{origin}:{user}",
            self._user_claim: user,
            "iat": now,
            "exp": now + lifetime_s,
            "jti": secrets.token_hex(8),
        }
        header = {"alg": _ALGORITHM, "kid": self._key.name, "typ": _TYPE}
        signed = f"{_text(header)}.{_text(claims)}"
        return f"{signed}.{_base64(self._key.sign(signed.encode()))}", lifetime_s

    def is_own(self, token: str) -> bool:
        """True if the header says so; nothing is verified."""
        try:
            return _header(token).get("typ") == _TYPE
        except ValueError:
            return False

    def verify(self, token: str) -> Mapping[str, Any]:
        """The claims. Raises `TokenRefused`."""
        signed, _, signature = token.rpartition(".")
        try:
            header = _header(token)
            claims = json_object(base64url(signed.partition(".")[2].encode("ascii")))
            proof = base64url(signature.encode("ascii"))
        except ValueError as error:
            raise TokenRefused(f"unreadable: {str(error)[:80]}") from None
        if (header.get("alg"), header.get("typ")) != (_ALGORITHM, _TYPE) or len(header) != 3:
            raise TokenRefused("header of an own token")
        try:
            self._ring.verify(str(header.get("kid")), signed.encode("ascii"), proof)
        except BadSignature as error:
            raise TokenRefused(f"own token: {error}") from None
        now = int(self._clock.now().timestamp())
        if claims.get("iss") != OWN_ISSUER or claims.get("aud") != self.audience:
            raise TokenRefused("own token of another cluster")
        end = claims.get("exp")
        if type(end) is not int or now >= end:
            raise TokenRefused("own token has expired")
        # The role is decided here and now: a token does not outlive the configuration.
        if claims.get(self._user_claim) in self.administrators:
            return {**claims, "lattice_role": "system-admin"}
        return claims


class OwnOrElse:
    """The port `TokenVerifier`: own tokens, and those of another verifier."""

    def __init__(self, own: OwnTokens, other: TokenVerifier | None) -> None:
        self._own = own
        self._other = other

    @property
    def needs_token(self) -> bool:
        return True

    async def verify(self, token: str) -> Mapping[str, Any]:
        """See the port."""
        if self._other is None or self._own.is_own(token):
            return self._own.verify(token)
        return await self._other.verify(token)


def _header(token: str) -> Mapping[str, Any]:
    if len(token) > _LARGEST or not token.isascii() or token.count(".") != 2:
        raise ValueError("not three parts")
    return json_object(base64url(token.partition(".")[0].encode("ascii")))


def _text(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
