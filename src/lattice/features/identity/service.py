"""The caller's identity as the server sees it, with the source of each fact."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from lattice.access.actor import Actor, Role
from lattice.access.policy import governed_tenant
from lattice.access.tokens import TokenRefused
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.munge_claim import MungeClaim
from lattice.domain.scheduler import Scheduler
from lattice.features.identity.model import AuthDiscovery, Fact, Identity, SignedIn

_log = logging.getLogger("lattice.identity")
_MUNGE_HINT = "Try again; if it stays, the server's log has the reason."


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
        self, reader: CredentialReader, tokens: TokenIssuer, is_here: Callable[[str], bool]
    ) -> None:
        """`is_here` is true for a host at which people reach this server."""
        self.cluster = tokens.audience
        self._reader = reader
        self._tokens = tokens
        self._is_here = is_here

    async def sign_in(self, credential: str) -> SignedIn:
        """Return a token. Raises `TokenRefused` or `Unavailable`."""
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
        _log.info("signed in by munge", extra={"user": user})
        lifetime_s = int(self._tokens.lifetime.total_seconds())
        return SignedIn(token=self._tokens.issue(user), user=user, lifetime_s=lifetime_s)

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

    async def sign_in_by_munge(self, credential: str) -> SignedIn:
        """Return a token. Raises `TokenRefused`, `Unavailable`, or `UsageError` if not offered."""
        if self._munge is None:
            raise UsageError(
                "This server offers no signing in by MUNGE.", hint="Run `lattice login`."
            )
        return await self._munge.sign_in(credential)

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
