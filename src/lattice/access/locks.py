"""What a lock means for a caller, and who may lock what. Pure; default deny."""

from __future__ import annotations

from lattice.access.actor import Actor, Role
from lattice.access.permission import Permission
from lattice.access.policy import governed_tenant
from lattice.base.errors import PermissionRefused, Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.lock import Lock, LockKind, Locks

ACTS = frozenset(
    {
        Permission.ATTACH_ALLOCATION,
        Permission.SUBMIT_ALLOCATION,
        Permission.CANCEL_ALLOCATION,
        Permission.SHARE_ALLOCATION,
        Permission.SWITCH_TELEMETRY,
        Permission.DRAIN_NODES,
        Permission.OPERATE_NODES,
        Permission.CLAIM_NODES,
        Permission.RELEASE_NODES,
    }
)
"""Acts that change something. Refused while the locks may be out of date."""

_LOCK_EVERYTHING = frozenset({Role.SYSTEM_ADMIN, Role.OPERATOR})


def refuse_locked(actor: Actor, permission: Permission, locks: Locks) -> None:
    """Raise `PermissionRefused` for a locked caller, for any call.

    A lock of everything does not stop those who may remove it.
    """
    lock = locks.of_user(actor.sub, actor.user)
    if lock is None:
        return
    ends_locks = permission is Permission.LOCK_ACCESS and actor.role in _LOCK_EVERYTHING
    if lock.kind is LockKind.ALL and ends_locks:
        return
    raise PermissionRefused(
        locked_text(lock), hint="Your jobs run on. Ask the administrators of the cluster."
    )


def refuse_unknown(permission: Permission, locks: Locks) -> None:
    """Raise `Unavailable` for an act on a replica without current locks."""
    if permission in ACTS and not locks.current:
        raise Unavailable(
            "This server has not heard from the agreed state for some seconds, so it can't know "
            "who is locked.",
            hint="Reading goes on. Try again in a minute.",
        )


def may_lock(actor: Actor, kind: LockKind, target: str, accounts: AccountTree) -> bool:
    """True if this caller may lock and unlock this target.

    A tenant admin may lock users who can charge its tenant and no other.
    """
    if actor.role in _LOCK_EVERYTHING:
        return True
    if actor.role is not Role.TENANT_ADMIN or kind is not LockKind.USER:
        return False
    tenant = governed_tenant(actor, accounts)
    return tenant != "" and accounts.tenants_of(target) == {tenant}


def locked_text(lock: Lock) -> str:
    """Why something ended or does not begin, in one sentence."""
    subject = {
        LockKind.USER: "Your access to Lattice",
        LockKind.NODE: f"Node {lock.target}",
        LockKind.SESSION: "This terminal",
        LockKind.ALL: "Lattice",
    }[lock.kind]
    until = f" until {lock.until:%Y-%m-%d %H:%M} UTC" if lock.until else ""
    return f"{subject} is locked{until}: {lock.reason}."
