"""Signing in by MUNGE: whom a credential signs in, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from ipaddress import ip_address
from typing import Protocol

from lattice.access.tokens import TokenRefused
from lattice.base.clock import Clock
from lattice.domain.munge_claim import MUNGE, MungeClaim
from lattice.features.identity.model import SignedIn
from lattice.features.identity.service.own_sign_in import SignInPace, TokenIssuer

_log = logging.getLogger("lattice.identity")
_HINT = "Try again; if it stays, the server's log has the reason."


class CredentialReader(Protocol):
    """Decodes MUNGE credentials."""

    async def read(self, credential: str) -> tuple[str, str]:
        """The Unix user who made it, and the text. Raises `ValueError` or `Unavailable`."""


class MungeSignIn:
    """Signs in the Unix user who made a MUNGE credential on a host of the cluster."""

    def __init__(
        self,
        reader: CredentialReader,
        tokens: TokenIssuer,
        is_here: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        """`is_here` is true for a host at which people reach this server."""
        self.cluster = tokens.audience
        self._reader = reader
        self._tokens = tokens
        self._is_here = is_here
        self._pace = SignInPace("MUNGE", clock)

    async def sign_in(self, credential: str, address: str) -> SignedIn:
        """Return a token. Raises `TokenRefused`, `RateLimited` or `Unavailable`.

        `address` is the caller's, empty on a unix socket.
        """
        self._pace.take(address)
        try:
            user, text = await self._reader.read(credential)
            claim = MungeClaim.parse(text)
        except ValueError as fault:
            raise _refused(str(fault)) from None
        if claim.cluster != self.cluster:
            raise _refused(f"MUNGE credential for cluster {claim.cluster}")
        if not self._is_here(claim.host):
            raise _refused(
                f"MUNGE credential for a server at {claim.host}: if people use that name for this "
                "one, put it into its certificate or into api.public_names"
            )
        if _is_loopback(claim.host) and not (address == "" or _is_loopback(address)):
            # Each machine has this name: a program of another user there may have got it.
            raise _refused(f"MUNGE credential for {claim.host}, sent from {address}")
        _log.info("signed in by munge", extra={"user": user})
        token, lifetime_s = self._tokens.issue(user, MUNGE)
        return SignedIn(token=token, user=user, lifetime_s=lifetime_s)


def _refused(reason: str) -> TokenRefused:
    _log.warning("sign-in by munge refused", extra={"reason": reason})
    return TokenRefused(reason, hint=_HINT)


def _is_loopback(host: str) -> bool:
    try:
        found = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
