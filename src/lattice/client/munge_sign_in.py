"""Signs in by MUNGE, for `lattice login` and to renew such a sign-in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from lattice.adapters.munge import encoded
from lattice.base.call import Call
from lattice.base.errors import LoginRequired, Unavailable
from lattice.domain.munge_claim import MUNGE, MungeClaim
from lattice.domain.peer import BadName
from lattice.domain.signin import GrantRefused, Tokens
from lattice.features.identity.operations import sign_in_by_munge

T = TypeVar("T")


class Caller(Protocol):
    """Makes calls to the server."""

    @property
    def url(self) -> str:
        """The replica that is tried first."""

    def call(self, call: Call[T]) -> T: ...


def munge_tokens(caller: Caller, cluster: str, environment: Mapping[str, str]) -> Tokens:
    """Tokens for the user of this process.

    Raises `LoginRequired` if the server refuses, `Unavailable` if MUNGE is not on this machine.
    """
    try:
        claim = str(MungeClaim(cluster, urlsplit(caller.url).hostname or ""))
    except BadName as fault:
        raise Unavailable(f"The server's answer can't be used: {fault}.") from None
    credential = encoded(claim, environment.get("LATTICE_MUNGE_SOCKET", ""))
    signed_in = caller.call(sign_in_by_munge(credential))
    # There is no refresh token: another credential renews it.
    return Tokens(access=signed_in.token, refresh=MUNGE, lifetime_s=float(signed_in.lifetime_s))


def renewed_tokens(caller: Caller, cluster: str, environment: Mapping[str, str]) -> Tokens:
    """The same, in place of tokens that have ended. Raises `GrantRefused` or `Unavailable`."""
    try:
        return munge_tokens(caller, cluster, environment)
    except LoginRequired as refusal:
        raise GrantRefused(refusal.message, hint=refusal.hint) from None
