"""The caller's identity as the server sees it, with the source of each fact."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Protocol

from lattice.access.actor import Actor, Role
from lattice.access.limits import Buckets
from lattice.access.policy import governed_tenant
from lattice.access.tokens import TokenRefused
from lattice.base.clock import Clock
from lattice.base.errors import RateLimited, Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.munge_claim import MungeClaim
from lattice.domain.scheduler import Scheduler
from lattice.features.identity.model import AuthDiscovery, Fact, Identity, SignedIn

_log = logging.getLogger("lattice.identity")
_MUNGE_HINT = "Try again; if it stays, the server's log has the reason."
_PER_MINUTE = 300
"""Sign-ins from one address, and a minute's worth at once: a login host has many users."""
_MOST_ADDRESSES = 20_000


class CredentialReader(Protocol):
    """Decodes MUNGE credentials."""

    async def read(self, credential: str) -> tuple[str, str]:
        """The Unix user who made it, and the text. Raises `ValueError` or `Unavailable`."""


class TokenIssuer(Protocol):
    """Issues the server's own tokens."""

    audience: str
    lifetime: timedelta

    def issue(self, user: str) -> str: ...


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
        self._clock = clock
        self._buckets = Buckets(_MOST_ADDRESSES)

    async def sign_in(self, credential: str, address: str) -> SignedIn:
        """Return a token. Raises `TokenRefused`, `RateLimited` or `Unavailable`.

        `address` is the caller's, empty on a unix socket.
        """
        self._pace(address)
        try:
            user, text = await self._reader.read(credential)
            claim = MungeClaim.parse(text)
        except ValueError as fault:
            raise self._refused(str(fault)) from None
        if claim.cluster != self.cluster:
            raise self._refused(f"MUNGE credential for cluster {claim.cluster}")
        if not self._is_here(claim.host):
            raise self._refused(
                f"MUNGE credential for a server at {claim.host}: if people use that name for this "
                "one, put it into its certificate or into api.public_names"
            )
        if _is_loopback(claim.host) and not (address == "" or _is_loopback(address)):
            # Each machine has this name: a program of another user there may have got it.
            raise self._refused(f"MUNGE credential for {claim.host}, sent from {address}")
        _log.info("signed in by munge", extra={"user": user})
        lifetime_s = int(self._tokens.lifetime.total_seconds())
        return SignedIn(token=self._tokens.issue(user), user=user, lifetime_s=lifetime_s)

    def _pace(self, address: str) -> None:
        # Each credential costs a process, and nobody is known before.
        verdict = self._buckets.take(address, "munge", _PER_MINUTE, self._clock.monotonic())
        if not verdict.granted:
            after_s = max(1, math.ceil(verdict.wait_s))
            raise RateLimited(
                f"Too many sign-ins by MUNGE from {address}: {_PER_MINUTE} a minute.",
                hint=f"Try again in {after_s} s.",
                retry_after_s=after_s,
            )

    def _refused(self, reason: str) -> TokenRefused:
        _log.warning("sign-in by munge refused", extra={"reason": reason})
        return TokenRefused(reason, hint=_MUNGE_HINT)


class IdentityService:
    """Describes the caller. It verifies nothing; the guard has done that."""

    def __init__(
        self, scheduler: Scheduler, discovery: AuthDiscovery, munge: MungeSignIn | None = None
    ) -> None:
        self._scheduler = scheduler
        self._discovery = replace(discovery, munge=munge.cluster if munge else "")
        self._munge = munge

    async def discovery(self) -> AuthDiscovery:
        """Return the provider and the client id to sign in with."""
        return self._discovery

    async def sign_in_by_munge(self, credential: str, address: str) -> SignedIn:
        """Return a token. Raises as `MungeSignIn.sign_in`, and `UsageError` if not offered."""
        if self._munge is None:
            raise UsageError(
                "This server offers no signing in by MUNGE.", hint="Run `lattice login`."
            )
        return await self._munge.sign_in(credential, address)

    async def whoami(self, actor: Actor) -> Identity:
        """Return every fact with its source."""
        accounts = self._accounts()
        return Identity(
            sub=actor.sub,
            user=Fact(value=actor.user, source=actor.user_from),
            tenant=_tenant(actor, accounts),
            role=Fact(value=actor.role.value, source=actor.role_from),
            scopes=tuple(sorted(actor.scopes)),
            coordinates=tuple(sorted(accounts.coordinated_by(actor.user))),
            expires=actor.expires,
            cluster=self._scheduler.cluster_name,
        )

    def _accounts(self) -> AccountTree:
        # The identity is available before Slurm answers; the coordinated accounts are not.
        try:
            return self._scheduler.live().cluster.accounts
        except Unavailable:
            return AccountTree()


def _is_loopback(host: str) -> bool:
    try:
        found = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _tenant(actor: Actor, accounts: AccountTree) -> Fact:
    if actor.role is Role.TENANT_ADMIN:
        tenant = governed_tenant(actor, accounts)
        if not tenant and actor.tenant:
            return Fact(value="", source=f"{actor.tenant_from} names no tenant of this cluster")
        if not tenant:
            return Fact(
                value="",
                source="no tenant claim, and no single tenant whose accounts you coordinate",
            )
        return Fact(value=tenant, source=actor.tenant_from or "Slurm accounts you coordinate")
    if actor.tenant:
        return Fact(value=actor.tenant, source=actor.tenant_from)
    tenants = sorted(accounts.tenants_of(actor.user))
    return Fact(value=", ".join(tenants), source="your Slurm accounts" if tenants else "")
