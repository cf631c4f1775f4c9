"""The policy: which role may do what, and on which allocations. Pure; default deny.

Every call checks two things in this order:

`admits`: may this actor make this kind of call at all (role and scope)?

`scope_of`: on which allocations? The answer is a filter, and the only definition of "yours". Lists
are filtered by it, and single look-ups are matched against it.
"""

from __future__ import annotations

from dataclasses import replace

from lattice.access.actor import ATTACH_SCOPE, READ_SCOPE, WRITE_SCOPE, Actor, Role
from lattice.access.permission import Permission
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.scheduler import Scope
from lattice.domain.sharing import Standing

_EVERYONE = frozenset(Role)
_WORKERS = _EVERYONE - {Role.READ_ONLY}

ALLOWED: dict[Permission, frozenset[Role]] = {
    Permission.IDENTIFIED: _EVERYONE,
    Permission.VIEW_ALLOCATIONS: _EVERYONE,
    Permission.READ_OUTPUT: _EVERYONE,
    Permission.READ_MEASUREMENTS: _EVERYONE,
    Permission.ATTACH_ALLOCATION: _WORKERS,
    Permission.SUBMIT_ALLOCATION: _WORKERS,
    Permission.CANCEL_ALLOCATION: _WORKERS,
    Permission.SHARE_ALLOCATION: _WORKERS,
    Permission.VIEW_SHARES: _EVERYONE,
    Permission.SWITCH_TELEMETRY: _WORKERS,
    Permission.VIEW_NODES: _EVERYONE,
    Permission.DRAIN_NODES: frozenset({Role.SYSTEM_ADMIN, Role.TENANT_ADMIN, Role.OPERATOR}),
    Permission.OPERATE_NODES: frozenset({Role.SYSTEM_ADMIN, Role.OPERATOR}),
    Permission.CLAIM_NODES: frozenset({Role.CLAIMING_USER}),
    # A claiming user: its own claims alone, see `lattice.access.claims`.
    Permission.RELEASE_NODES: frozenset({Role.CLAIMING_USER, Role.SYSTEM_ADMIN}),
    Permission.VIEW_AUDIT: _EVERYONE,
    Permission.REVIEW_AUDIT: frozenset(
        {Role.SYSTEM_ADMIN, Role.TENANT_ADMIN, Role.COMPLIANCE_REVIEWER}
    ),
    # A tenant admin: its own tenant alone, see `lattice.features.tenants`.
    Permission.VIEW_TENANTS: frozenset({Role.SYSTEM_ADMIN, Role.TENANT_ADMIN}),
    Permission.MANAGE_TENANTS: frozenset({Role.SYSTEM_ADMIN}),
    Permission.OBSERVE_SERVER: frozenset({Role.SYSTEM_ADMIN, Role.OPERATOR}),
    Permission.ADMINISTER: frozenset({Role.SYSTEM_ADMIN}),
    # A tenant admin: users of its tenant alone, see `lattice.access.locks`.
    Permission.LOCK_ACCESS: frozenset({Role.SYSTEM_ADMIN, Role.TENANT_ADMIN, Role.OPERATOR}),
    # No role has these: they belong to certificates, on the agents' own listener.
    Permission.AGENT: frozenset(),
    Permission.REPLICA: frozenset(),
}

_NEEDED_SCOPES: dict[Permission, frozenset[str]] = {
    Permission.READ_OUTPUT: frozenset({READ_SCOPE}),
    Permission.READ_MEASUREMENTS: frozenset({READ_SCOPE}),
    Permission.ATTACH_ALLOCATION: frozenset({ATTACH_SCOPE}),
    Permission.SUBMIT_ALLOCATION: frozenset({WRITE_SCOPE}),
    Permission.CANCEL_ALLOCATION: frozenset({WRITE_SCOPE}),
    # A caller can't share what it may not read itself.
    Permission.SHARE_ALLOCATION: frozenset({READ_SCOPE, WRITE_SCOPE}),
    Permission.SWITCH_TELEMETRY: frozenset({WRITE_SCOPE}),
}

# Only the owner, in any role. A terminal is the power to act as the owner. The owner alone decides
# and sees who may read, and decides how often the job is sampled.
_OWNER_ONLY = frozenset(
    {
        Permission.ATTACH_ALLOCATION,
        Permission.SHARE_ALLOCATION,
        Permission.VIEW_SHARES,
        Permission.SWITCH_TELEMETRY,
    }
)

# What a share permits: the card of one allocation, its output and measurements. Nothing that acts.
_BY_SHARE = frozenset(
    {Permission.VIEW_ALLOCATIONS, Permission.READ_OUTPUT, Permission.READ_MEASUREMENTS}
)

# What nobody but the owner may do with sensitive work, with the exceptions of `sensitive_standing`.
ISOLATED = frozenset(
    {
        Permission.READ_OUTPUT,
        Permission.READ_MEASUREMENTS,
        Permission.ATTACH_ALLOCATION,
        Permission.SHARE_ALLOCATION,
        Permission.VIEW_SHARES,
        Permission.SWITCH_TELEMETRY,
    }
)
_REVIEWED = frozenset({Permission.VIEW_ALLOCATIONS, Permission.READ_OUTPUT})


def admits(actor: Actor | None, permission: Permission) -> bool:
    """True if this caller may make calls of this kind."""
    if permission is Permission.PUBLIC:
        return True
    if actor is None or actor.role not in ALLOWED.get(permission, frozenset()):
        return False
    return not lacking_scopes(actor, permission)


def lacking_scopes(actor: Actor, permission: Permission) -> frozenset[str]:
    """The scopes that the token lacks. A token without any `allocations:` scope lacks none."""
    if not any(scope.startswith("allocations:") for scope in actor.scopes):
        return frozenset()
    return _NEEDED_SCOPES.get(permission, frozenset()) - actor.scopes


def scope_of(actor: Actor, permission: Permission, accounts: AccountTree) -> Scope:
    """The allocations on which this caller may use this permission."""
    if not admits(actor, permission):
        return Scope()
    own = frozenset({actor.user}) if actor.user else frozenset[str]()
    if permission in _OWNER_ONLY or actor.role is Role.READ_ONLY:
        return Scope(users=own)
    if actor.role is Role.SYSTEM_ADMIN:
        return Scope(users=own, everything=True)
    governed = accounts.coordinated_by(actor.user)
    if actor.role is Role.TENANT_ADMIN:
        tenant = governed_tenant(actor, accounts)
        governed |= accounts.below(tenant) if tenant else frozenset()
    return Scope(users=own, accounts=governed)


def standing_of(
    actor: Actor, permission: Permission, accounts: AccountTree, allocation: Allocation
) -> Standing | None:
    """The caller's own right to use this permission on this allocation, or None.

    Shares of others are not considered here.
    """
    if not scope_of(actor, permission, accounts).covers(allocation):
        return None
    if actor.user and actor.user == allocation.user:
        return Standing.OWNER
    if allocation.account in accounts.coordinated_by(actor.user):
        return Standing.COORDINATOR
    return Standing.TENANT_ADMIN if actor.role is Role.TENANT_ADMIN else Standing.SYSTEM_ADMIN


def known_of(actor: Actor, permission: Permission, accounts: AccountTree) -> Scope:
    """The sensitive allocations that this caller may know of, though not what is in them."""
    if not admits(actor, permission):
        return Scope()
    known = scope_of(actor, Permission.VIEW_ALLOCATIONS, accounts)
    tenant = _reviewed_tenant(actor, accounts)
    return replace(known, accounts=known.accounts | accounts.below(tenant)) if tenant else known


def sensitive_standing(
    actor: Actor, permission: Permission, accounts: AccountTree, allocation: Allocation
) -> Standing | None:
    """The caller's right to use this permission on a sensitive allocation, or None.

    What is in it is the owner's alone. Its tenant's reviewer may also read its output. Nobody
    shares it. Administrators see its card and may cancel it, as with other work.
    """
    if not admits(actor, permission):
        return None
    tenant = _reviewed_tenant(actor, accounts)
    is_owners = actor.user != "" and actor.user == allocation.user
    if not is_owners and tenant and permission in _REVIEWED and allocation.tenant == tenant:
        return Standing.REVIEWER
    if permission not in ISOLATED:
        return standing_of(actor, permission, accounts, allocation)
    return Standing.OWNER if is_owners and permission is not Permission.SHARE_ALLOCATION else None


def _reviewed_tenant(actor: Actor, accounts: AccountTree) -> str:
    """The tenant of a compliance reviewer. Only its token can name it."""
    if actor.role is not Role.COMPLIANCE_REVIEWER:
        return ""
    return actor.tenant if accounts.tenant_of(actor.tenant) == actor.tenant else ""


def takes_shares(actor: Actor, permission: Permission) -> bool:
    """True if shares of others count for this caller and this permission."""
    return permission in _BY_SHARE and actor.user != "" and admits(actor, permission)


def operates_own_nodes_only(actor: Actor) -> bool:
    """True if this caller may only operate nodes that serve no other tenant."""
    return actor.role is Role.TENANT_ADMIN


def governed_tenant(actor: Actor, accounts: AccountTree) -> str:
    """The tenant of a tenant admin: the token's, else the one of the accounts that it coordinates.

    An admin with accounts in several tenants governs none, unless the token names one.
    """
    if actor.role is not Role.TENANT_ADMIN:
        return ""
    if actor.tenant:
        # Only a top account is a tenant; a claim with a project governs nothing.
        return actor.tenant if accounts.tenant_of(actor.tenant) == actor.tenant else ""
    tenants = {accounts.tenant_of(name) for name in accounts.coordinated_by(actor.user)} - {""}
    return tenants.pop() if len(tenants) == 1 else ""
