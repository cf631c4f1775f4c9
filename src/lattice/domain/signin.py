"""Signing in: what an identity provider issues, and the port to it. Pure.

Only code that signs in, renews or signs out imports this. Reading a valid token does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lattice.base.errors import LoginRequired

SLURM = "slurm"
"""The name of signing in by a Slurm token: as a flow, and as the issuer of stored tokens."""


class GrantRefused(LoginRequired):
    """The provider will not renew: the refresh token was used, revoked or is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One set of tokens. `lifetime_s` counts from the response; None: the provider gives none."""

    access: str
    refresh: str | None = None
    lifetime_s: float | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What a person has to do on another device, and for how long it can be done."""

    page: str
    code: str
    page_with_code: str | None
    lifetime_s: float


class IdentityProvider(Protocol):
    """Where people sign in."""

    def by_browser(self, scopes: Sequence[str], show: Callable[[str, bool], None]) -> Tokens:
        """Authorization code with PKCE and a loopback address.

        `show` gets the address and whether a browser was opened on it.
        """

    def by_device(self, scopes: Sequence[str], show: Callable[[DeviceCode], None]) -> Tokens:
        """The device flow: `show` gets what the person must do."""

    def by_hand(self, scopes: Sequence[str], ask: Callable[[str], str]) -> Tokens:
        """Like `by_browser`, but the person pastes the answer: `ask` gets the address."""

    def renew(self, refresh: str) -> Tokens:
        """New tokens for a refresh token; raises `GrantRefused`."""

    def revoke(self, *tokens: str) -> bool:
        """Revoke tokens; False if the provider offers no way to."""


class Locker(Protocol):
    """Where the tokens for one server are kept."""

    def keep(self, tokens: Tokens, *, issuer: str, client_id: str) -> None:
        """Store the tokens of a sign-in in place of earlier ones."""

    def empty(self) -> tuple[str, ...]:
        """Remove everything and return the tokens that were kept, to be revoked."""

    def expires_at(self) -> float | None:
        """When the access token expires, in seconds since 1970; None: unknown, or no token."""

    def issuer(self) -> str:
        """Who issued the tokens; empty if none are kept."""

    def holds(self) -> bool:
        """True if a token is kept."""
