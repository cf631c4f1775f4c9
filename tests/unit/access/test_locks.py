"""What a lock shuts out, and who may lock whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.access.locks import ACTS, locked_text, may_lock, refuse_locked, refuse_unknown
from lattice.access.permission import Permission
from lattice.base.errors import PermissionRefused, Unavailable
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.lock import Lock, LockKind

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)
ACCOUNTS = AccountTree.of(
    [Account("physics"), Account("fusion", "physics"), Account("chemistry")],
    {"alice": ["fusion"], "bob": ["fusion", "chemistry"], "carol": ["chemistry"]},
)


class OneLock:
    """The port `Locks` with one lock in it."""

    def __init__(self, kind: LockKind, target: str = "", *, current: bool = True) -> None:
        self.lock = Lock(kind=kind, target=target, reason="stolen laptop", by="olga", since=NOON)
        self.current = current

    def of_user(self, *names: str) -> Lock | None:
        hit = self.lock.kind is LockKind.ALL or (
            self.lock.kind is LockKind.USER and self.lock.target in names
        )
        return self.lock if hit else None

    def of_node(self, node: str) -> Lock | None:
        return self.lock if (self.lock.kind, self.lock.target) == (LockKind.NODE, node) else None

    def of_session(self, session: str) -> Lock | None:
        found = (self.lock.kind, self.lock.target) == (LockKind.SESSION, session)
        return self.lock if found else None


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("stolen-token")
@pytest.mark.parametrize("name", ["alice", "sub-1"])
@pytest.mark.parametrize("permission", list(Permission))
def test_a_locked_user_makes_no_call_at_all(name: str, permission: Permission) -> None:
    alice = Actor(sub="sub-1", user="alice", role=Role.SYSTEM_ADMIN)
    with pytest.raises(PermissionRefused) as refused:
        refuse_locked(alice, permission, OneLock(LockKind.USER, name))
    assert refused.value.message == "Your access to Lattice is locked: stolen laptop."
    refuse_locked(Actor(sub="2", user="bob"), permission, OneLock(LockKind.USER, name))


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("lock-out")
@pytest.mark.parametrize("role", list(Role))
def test_a_lock_of_everything_leaves_its_own_end_open(role: Role) -> None:
    someone = Actor(sub="1", user="olga", role=role)
    locks = OneLock(LockKind.ALL)
    with pytest.raises(PermissionRefused, match="Lattice is locked: stolen laptop"):
        refuse_locked(someone, Permission.VIEW_ALLOCATIONS, locks)
    if role in {Role.OPERATOR, Role.SYSTEM_ADMIN}:
        refuse_locked(someone, Permission.LOCK_ACCESS, locks)
    else:
        with pytest.raises(PermissionRefused):
            refuse_locked(someone, Permission.LOCK_ACCESS, locks)


@pytest.mark.spec("AUTH-13")
@pytest.mark.threat("locked-cut-off")
@pytest.mark.parametrize("permission", list(Permission))
def test_acts_are_refused_where_nobody_knows_who_is_locked(permission: Permission) -> None:
    late = OneLock(LockKind.NODE, "n9", current=False)
    if permission in ACTS:
        with pytest.raises(Unavailable, match="who is locked"):
            refuse_unknown(permission, late)
    else:
        refuse_unknown(permission, late)


@pytest.mark.spec("AUTH-13")
@pytest.mark.parametrize("kind", list(LockKind))
@pytest.mark.parametrize("role", list(Role))
def test_who_may_lock_what(role: Role, kind: LockKind) -> None:
    actor = Actor(sub="1", user="dora", role=role, tenant="physics")
    everything = role in {Role.OPERATOR, Role.SYSTEM_ADMIN}
    of_tenant = role is Role.TENANT_ADMIN and kind is LockKind.USER
    assert may_lock(actor, kind, "alice", ACCOUNTS) is (everything or of_tenant)
    # Bob works in two tenants, carol in another, and nobody knows mallory.
    for other in ("bob", "carol", "mallory"):
        assert may_lock(actor, kind, other, ACCOUNTS) is everything


def test_a_tenant_admin_without_a_tenant_locks_nobody() -> None:
    actor = Actor(sub="1", user="dora", role=Role.TENANT_ADMIN)
    assert not may_lock(actor, LockKind.USER, "mallory", ACCOUNTS)


def test_the_text_says_until_when() -> None:
    lock = Lock(
        kind=LockKind.NODE,
        target="n3",
        reason="forensics",
        by="olga",
        since=NOON,
        until=NOON + timedelta(hours=2),
    )
    assert locked_text(lock) == "Node n3 is locked until 2026-11-17 14:00 UTC: forensics."
