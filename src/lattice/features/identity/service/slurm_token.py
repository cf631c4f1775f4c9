"""Signing in by a Slurm token: Slurm judges it, and it is exchanged for one of the server's own.

The token is neither kept nor logged.
"""

from __future__ import annotations

import logging
from typing import Protocol

from lattice.access.tokens import TokenRefused
from lattice.base.clock import Clock
from lattice.domain.signin import SLURM
from lattice.features.identity.model import SignedIn
from lattice.features.identity.service.own_sign_in import SignInPace, TokenIssuer

_log = logging.getLogger("lattice.identity")
_HINT = "Try a new one (`scontrol token`); if it stays, the server's log has the reason."


class TokenJudge(Protocol):
    """Lets Slurm decide whose token it is."""

    async def judge(self, token: str) -> tuple[str, int]:
        """The user who alone it is for, and its end in seconds since 1970.

        Raises `ValueError` with a reason that has nothing of the token, `RateLimited`, or
        `Unavailable`.
        """


class SlurmSignIn:
    """Signs in the Unix user of a Slurm token."""

    def __init__(self, judge: TokenJudge, tokens: TokenIssuer, clock: Clock) -> None:
        self.cluster = tokens.audience
        self._judge = judge
        self._tokens = tokens
        self._pace = SignInPace("Slurm token", clock)

    async def sign_in(self, token: str, address: str) -> SignedIn:
        """Return a token that ends with Slurm's or before.

        Raises `TokenRefused`, `RateLimited` or `Unavailable`. `address` is the caller's, empty on
        a unix socket.
        """
        self._pace.take(address)
        try:
            user, end = await self._judge.judge(token)
        except ValueError as fault:
            raise _refused(str(fault)) from None
        own, lifetime_s = self._tokens.issue(user, SLURM, end)
        if lifetime_s <= 0:
            raise _refused("it has expired")
        _log.info("signed in by a slurm token", extra={"user": user})
        return SignedIn(token=own, user=user, lifetime_s=lifetime_s)


def _refused(reason: str) -> TokenRefused:
    _log.warning("sign-in by a slurm token refused", extra={"reason": reason})
    return TokenRefused(reason, hint=_HINT)
