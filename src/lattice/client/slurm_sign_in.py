"""Signs in by a Slurm token, for `lattice login` and to renew such a sign-in.

The token is sent once and not kept: who has it is its user for Slurm, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from lattice.adapters.scontrol_token import VARIABLE, own_token
from lattice.base.call import Call
from lattice.base.errors import ConfigurationError, LoginRequired
from lattice.domain.signin import SLURM, GrantRefused, Tokens
from lattice.features.identity.operations import sign_in_by_slurm_token

T = TypeVar("T")


class TokenCaller(Protocol):
    """Makes calls to the server."""

    def call(self, call: Call[T]) -> T: ...


def slurm_tokens(
    caller: TokenCaller, urls: Iterable[str], environment: Mapping[str, str]
) -> Tokens:
    """Tokens for the user of SLURM_JWT, or of this process.

    Raises `LoginRequired` if the server refuses, `Unavailable` if there is no Slurm token, and
    `ConfigurationError` if one of the servers at `urls` has no TLS.
    """
    for url in urls:
        if urlsplit(url).scheme != "https":
            # Also on loopback: another user's program may listen at that port.
            raise ConfigurationError(
                f"A Slurm token is sent by https alone, not to {url}.",
                hint="Set api.tls_cert on the server, or use another --flow.",
            )
    token = environment.get(VARIABLE, "").strip() or own_token(environment)
    signed_in = caller.call(sign_in_by_slurm_token(token))
    # There is no refresh token: another Slurm token renews it.
    return Tokens(access=signed_in.token, refresh=SLURM, lifetime_s=float(signed_in.lifetime_s))


def renewed_tokens(
    caller: TokenCaller, urls: Iterable[str], environment: Mapping[str, str]
) -> Tokens:
    """The same, in place of tokens that have ended. Raises `GrantRefused` or `Unavailable`."""
    try:
        return slurm_tokens(caller, urls, environment)
    except LoginRequired as refusal:
        raise GrantRefused(refusal.message, hint=refusal.hint) from None
