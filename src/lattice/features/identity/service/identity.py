"""The caller's identity as the server sees it, with the source of each fact."""

from __future__ import annotations

from dataclasses import replace

from lattice.access.actor import Actor, Role
from lattice.access.policy import governed_tenant
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.accounts import AccountTree
from lattice.domain.scheduler import Scheduler
from lattice.features.identity.model import AuthDiscovery, Fact, Identity, SignedIn
from lattice.features.identity.service.munge import MungeSignIn
from lattice.features.identity.service.slurm_token import SlurmSignIn


class IdentityService:
    """Describes the caller. It verifies nothing; the guard has done that."""

    def __init__(
        self,
        scheduler: Scheduler,
        discovery: AuthDiscovery,
        munge: MungeSignIn | None = None,
        slurm: SlurmSignIn | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._discovery = replace(
            discovery,
            munge=munge.cluster if munge else "",
            slurm=slurm.cluster if slurm else "",
        )
        self._munge = munge
        self._slurm = slurm

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

    async def sign_in_by_slurm_token(self, token: str, address: str) -> SignedIn:
        """Return a token. Raises as `SlurmSignIn.sign_in`, and `UsageError` if not offered."""
        if self._slurm is None:
            raise UsageError(
                "This server offers no signing in by Slurm tokens.", hint="Run `lattice login`."
            )
        return await self._slurm.sign_in(token, address)

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
