"""Who may see whose claim it is, and who may release it. Pure; default deny."""

from __future__ import annotations

from lattice.access.actor import Actor, Role
from lattice.access.policy import governed_tenant
from lattice.domain.accounts import AccountTree
from lattice.domain.claim import NodeClaim

_OPERATORS = frozenset({Role.SYSTEM_ADMIN, Role.OPERATOR})


def may_see(actor: Actor, claim: NodeClaim, accounts: AccountTree) -> bool:
    """True for the claimer, operators, system admins, and tenant admins of the claim's tenant."""
    if actor.role in _OPERATORS or _holds(actor, claim):
        return True
    return claim.tenant != "" and governed_tenant(actor, accounts) == claim.tenant


def may_release(actor: Actor, claim: NodeClaim) -> bool:
    """True for the claimer, and for system admins: a claimer may have left."""
    return actor.role is Role.SYSTEM_ADMIN or _holds(actor, claim)


def tenant_of_claimer(actor: Actor, accounts: AccountTree) -> str:
    """The tenant of the caller: the token's, else the only one whose accounts it may charge."""
    if actor.tenant:
        return actor.tenant if accounts.tenant_of(actor.tenant) == actor.tenant else ""
    tenants = accounts.tenants_of(actor.user)
    return next(iter(tenants)) if len(tenants) == 1 else ""


def _holds(actor: Actor, claim: NodeClaim) -> bool:
    return actor.user != "" and actor.user == claim.user
