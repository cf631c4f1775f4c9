"""The whole table: role × scope × permission × ownership × coordination × tenant.

What is expected here is written from the specification by itself and knows nothing of the policy:
rows of words for what a role may do, and a sentence each for what lies within reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, Role
from lattice.access.permission import Permission
from lattice.access.policy import (
    ALLOWED,
    admits,
    governed_tenant,
    scope_of,
    standing_of,
    takes_shares,
)
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation, State
from lattice.domain.sharing import Standing

READS = (
    "IDENTIFIED VIEW_ALLOCATIONS READ_OUTPUT READ_MEASUREMENTS VIEW_SHARES VIEW_NODES VIEW_AUDIT"
)
USES = (
    f"{READS} ATTACH_ALLOCATION SUBMIT_ALLOCATION CANCEL_ALLOCATION SHARE_ALLOCATION "
    "SWITCH_TELEMETRY"
)
MAY = {
    "SystemAdmin": f"{USES} DRAIN_NODES OPERATE_NODES REVIEW_AUDIT MANAGE_TENANTS OBSERVE_SERVER "
    "ADMINISTER LOCK_ACCESS VIEW_TENANTS RELEASE_NODES",
    "TenantAdmin": f"{USES} DRAIN_NODES REVIEW_AUDIT LOCK_ACCESS VIEW_TENANTS",
    "Operator": f"{USES} DRAIN_NODES OPERATE_NODES OBSERVE_SERVER LOCK_ACCESS",
    "ClaimingUser": f"{USES} CLAIM_NODES RELEASE_NODES",
    "ReadOnly": READS,
    "ComplianceReviewer": f"{USES} REVIEW_AUDIT",
    "User": USES,
}
# Of a token that carries any `allocations:` scope.
NEEDS = {
    "READ_OUTPUT": "read",
    "READ_MEASUREMENTS": "read",
    "ATTACH_ALLOCATION": "attach",
    "SUBMIT_ALLOCATION": "write",
    "CANCEL_ALLOCATION": "write",
    "SHARE_ALLOCATION": "read write",
    "SWITCH_TELEMETRY": "write",
}
SCOPES = [
    frozenset[str](),
    frozenset({"openid", "profile"}),
    frozenset({"allocations:read"}),
    frozenset({"allocations:attach"}),
    frozenset({"allocations:read", "allocations:attach"}),
    frozenset({"allocations:write"}),
    frozenset({"allocations:read", "allocations:write"}),
    frozenset({"allocations:other"}),
    frozenset({"allocations:*"}),
]


# physics ── fusion ── plasma      chemistry ── lab      loop ⇄ loop2, orphan under nothing
ACCOUNTS = AccountTree.of(
    [
        Account("root"),
        Account("physics", "", frozenset({"head"})),
        Account("fusion", "physics", frozenset({"lead", "both"})),
        Account("plasma", "fusion"),
        Account("chemistry", "root", frozenset({"both"})),
        Account("lab", "chemistry", frozenset({"carol"})),
        Account("loop", "loop2", frozenset({"carol"})),
        Account("loop2", "loop"),
        Account("orphan", "gone", frozenset({"carol"})),
    ],
    {"alice": ["plasma"], "carol": ["lab"], "bob": ["lab", "plasma"]},
)
LINE = {
    "physics": ["physics"],
    "fusion": ["fusion", "physics"],
    "plasma": ["plasma", "fusion", "physics"],
    "chemistry": ["chemistry"],
    "lab": ["lab", "chemistry"],
}
COORDINATES = {
    "head": ["physics"],
    "lead": ["fusion"],
    "both": ["fusion", "chemistry"],
    "carol": ["lab"],
}
USERS = ["", "alice", "bob", "carol", "head", "lead", "both", "root"]
TENANTS = ["", "physics", "chemistry", "fusion", "nowhere", "loop", "root"]


def allocation(user: str, account: str) -> Allocation:
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    return Allocation(
        cluster="alpha",
        id="1",
        job_id=1,
        name="x",
        user=user,
        account=account,
        tenant="",
        partition="p",
        qos="",
        vcluster=None,
        state=State.RUNNING,
        submitted=moment,
        first_submitted=moment,
    )


ALLOCATIONS = [
    allocation(user, account)
    for user in ("alice", "bob", "carol", "lead", "")
    for account in ("plasma", "fusion", "physics", "lab", "loop", "orphan", "unknown", "")
]


@dataclass(frozen=True)
class Case:
    role: str
    scopes: frozenset[str]
    user: str
    tenant: str

    @property
    def actor(self) -> Actor:
        return Actor(
            sub="s", user=self.user, tenant=self.tenant, role=Role(self.role), scopes=self.scopes
        )


def cases() -> Iterator[Case]:
    for role, scopes, user, tenant in itertools.product(MAY, SCOPES, USERS, TENANTS):
        yield Case(role, scopes, user, tenant)


def may_call(case: Case, permission: str) -> bool:
    return may_token(case.role, case.scopes, permission)


@cache
def may_token(role: str, scopes: frozenset[str], permission: str) -> bool:
    if permission == "PUBLIC":
        return True
    if permission not in MAY[role].split():
        return False
    limited = [scope for scope in scopes if scope.split(":")[0] == "allocations"]
    needed = NEEDS.get(permission, "").split()
    return not limited or all(f"allocations:{scope}" in limited for scope in needed)


def reaches(case: Case, permission: str, target: Allocation) -> bool:
    """May this caller do this to this allocation?"""
    owner = case.user != "" and case.user == target.user
    if not may_call(case, permission):
        return False
    owners = {"ATTACH_ALLOCATION", "SHARE_ALLOCATION", "VIEW_SHARES", "SWITCH_TELEMETRY"}
    if permission in owners or case.role == "ReadOnly":
        return owner
    if case.role == "SystemAdmin" or owner:
        return True
    line = LINE.get(target.account, [])
    if any(account in COORDINATES.get(case.user, []) for account in line):
        return True
    return case.role == "TenantAdmin" and line != [] and line[-1] == tenant_of(case)


def tenant_of(case: Case) -> str:
    if case.tenant:
        return case.tenant if case.tenant in {"physics", "chemistry"} else ""
    found = {LINE[account][-1] for account in COORDINATES.get(case.user, [])}
    return found.pop() if len(found) == 1 else ""


@pytest.mark.spec("AUTH-4", "AUTH-5", "AUTH-6")
@pytest.mark.threat("reading-token")
def test_who_may_make_which_call() -> None:
    wrong = [
        (case, permission)
        for case in cases()
        for permission in Permission
        if admits(case.actor, permission) is not may_call(case, permission.value)
    ]
    assert wrong == []


@pytest.mark.spec("AUTH-4", "AUTH-5", "AUTH-7")
@pytest.mark.parametrize("permission", [each for each in Permission if each.name != "PUBLIC"])
def test_on_whose_allocations(permission: Permission) -> None:
    wrong = [
        (case, target.user, target.account)
        for case in cases()
        for scope in [scope_of(case.actor, permission, ACCOUNTS)]
        for target in ALLOCATIONS
        if scope.covers(target) is not reaches(case, permission.value, target)
    ]
    assert wrong == []


@pytest.mark.spec("AUTH-6")
def test_default_deny() -> None:
    for permission in Permission:
        assert admits(None, permission) is (permission is Permission.PUBLIC)
    assert set(ALLOWED) == set(Permission) - {Permission.PUBLIC}


@pytest.mark.spec("AUTH-6")
def test_a_permission_the_policy_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ALLOWED, Permission.VIEW_NODES)
    for role in Role:
        assert not admits(Actor(sub="s", user="u", role=role), Permission.VIEW_NODES)


_names = st.sampled_from(["a", "b", "c", "d", "root", ""])
_users = st.sampled_from(["u", "v", "w", ""])
_trees = st.builds(
    lambda rows, members: AccountTree.of(
        [Account(name, parent, frozenset(who)) for name, parent, who in rows], members
    ),
    st.lists(st.tuples(_names, _names, st.lists(_users, max_size=2)), max_size=6),
    st.dictionaries(_users, st.lists(_names, max_size=3), max_size=3),
)
_actors = st.builds(
    Actor,
    sub=st.just("s"),
    user=_users,
    tenant=st.sampled_from(["", "a", "b", "zzz"]),
    role=st.sampled_from(Role),
    scopes=st.sampled_from(SCOPES),
)
_targets = st.builds(allocation, _users, st.sampled_from(["a", "b", "c", "d", "zzz", ""]))


@pytest.mark.spec("AUTH-7")
@given(_actors, _trees, _targets)
def test_a_terminal_is_the_owners_alone(
    actor: Actor, accounts: AccountTree, target: Allocation
) -> None:
    if scope_of(actor, Permission.ATTACH_ALLOCATION, accounts).covers(target):
        assert actor.user == target.user != ""


@pytest.mark.spec("AUTH-4")
@given(_actors, _trees, _targets, st.sampled_from(Permission))
def test_read_only_narrows(
    actor: Actor, accounts: AccountTree, target: Allocation, permission: Permission
) -> None:
    if permission is Permission.PUBLIC:
        return
    narrow = Actor(sub="s", user=actor.user, role=Role.READ_ONLY, scopes=actor.scopes)
    plain = Actor(sub="s", user=actor.user, role=Role.USER, scopes=actor.scopes)
    if admits(narrow, permission):
        assert admits(plain, permission)
    if scope_of(narrow, permission, accounts).covers(target):
        assert actor.user == target.user
        assert scope_of(plain, permission, accounts).covers(target)


@pytest.mark.spec("AUTH-4")
@given(_actors, _trees)
def test_a_tenant_is_governed_by_its_admin_or_by_nobody(
    actor: Actor, accounts: AccountTree
) -> None:
    tenant = governed_tenant(actor, accounts)
    if tenant:
        assert actor.role is Role.TENANT_ADMIN
        assert accounts.tenant_of(tenant) == tenant
    tenants = {accounts.tenant_of(name) for name in accounts.coordinated_by(actor.user)} - {""}
    if actor.role is Role.TENANT_ADMIN and not actor.tenant and len(tenants) != 1:
        assert tenant == "", "several tenants, or none, name no tenant"


@pytest.mark.spec("AUTH-7")
@given(_actors, _trees, _targets, st.sampled_from(Permission))
def test_nobody_reaches_what_has_neither_user_nor_account(
    actor: Actor, accounts: AccountTree, target: Allocation, permission: Permission
) -> None:
    scope = scope_of(actor, permission, accounts)
    assert scope.everything == (actor.role is Role.SYSTEM_ADMIN and scope.everything)
    blank = allocation("", "")
    assert scope.covers(blank) is scope.everything
    if not actor.user and actor.role is not Role.SYSTEM_ADMIN and not actor.tenant:
        assert not scope.covers(target)


@pytest.mark.spec("AUTH-5")
@given(_actors, _trees, _targets, st.sampled_from(Permission))
def test_scopes_on_a_token_only_ever_take_away(
    actor: Actor, accounts: AccountTree, target: Allocation, permission: Permission
) -> None:
    free = Actor(sub="s", user=actor.user, tenant=actor.tenant, role=actor.role)
    if scope_of(actor, permission, accounts).covers(target):
        assert scope_of(free, permission, accounts).covers(target)


def standing(case: Case, target: Allocation) -> str | None:
    """By which right this caller reads this output, in the words of the specification."""
    if not reaches(case, "READ_OUTPUT", target):
        return None
    if case.user != "" and case.user == target.user:
        return "owner"
    if any(each in COORDINATES.get(case.user, []) for each in LINE.get(target.account, [])):
        return "coordinator"
    return {"TenantAdmin": "tenant admin", "SystemAdmin": "system admin"}[case.role]


@pytest.mark.spec("AUTH-7")
def test_who_reads_output_and_by_which_right() -> None:
    wrong = [
        (case, target.user, target.account)
        for case in cases()
        for target in ALLOCATIONS
        if standing_of(case.actor, Permission.READ_OUTPUT, ACCOUNTS, target)
        != standing(case, target)
    ]
    assert wrong == []


@pytest.mark.spec("AUTH-6", "AUTH-7")
@given(_actors, _trees, _targets, st.sampled_from(Permission))
def test_a_right_is_named_exactly_where_there_is_one(
    actor: Actor, accounts: AccountTree, target: Allocation, permission: Permission
) -> None:
    found = standing_of(actor, permission, accounts, target)
    assert (found is not None) is scope_of(actor, permission, accounts).covers(target)
    assert (found is Standing.OWNER) is (
        found is not None and actor.user == target.user and actor.user != ""
    )
    assert found is not Standing.SHARED, "that is never a right of the caller's own"


@pytest.mark.spec("AUTH-7")
@given(_actors, _trees, _targets)
def test_a_project_mate_reads_nothing(
    actor: Actor, accounts: AccountTree, target: Allocation
) -> None:
    """Charging the same account gives no right; only owning, coordinating or governing does."""
    if actor.role in {Role.SYSTEM_ADMIN, Role.TENANT_ADMIN} or actor.user == target.user:
        return
    if target.account not in accounts.coordinated_by(actor.user):
        assert standing_of(actor, Permission.READ_OUTPUT, accounts, target) is None


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("wider-share")
@given(_actors, st.sampled_from(Permission))
def test_a_share_gives_the_card_and_the_output_and_nothing_else(
    actor: Actor, permission: Permission
) -> None:
    if takes_shares(actor, permission):
        assert permission in {
            Permission.VIEW_ALLOCATIONS,
            Permission.READ_OUTPUT,
            Permission.READ_MEASUREMENTS,
        }
        assert actor.user, "nobody shares with one who is no user"
        assert admits(actor, permission), "and a token's own limits hold"
