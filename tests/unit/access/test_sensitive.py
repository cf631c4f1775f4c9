"""What is in sensitive work is for its owner; its output also for the reviewer of the tenant."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from lattice.access.actor import READ_SCOPE, WRITE_SCOPE, Actor, Role
from lattice.access.allocation_finder import AllocationFinder
from lattice.access.output import OutputAccess
from lattice.access.permission import Permission
from lattice.access.policy import ISOLATED
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.errors import NotFound, PermissionRefused, Unavailable
from lattice.domain.audit import AuditAct, AuditOutcome, SensitiveAuditRequired
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.sharing import ReadKind, Share, Standing
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import ACCOUNTS, allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.required_trail import RequiredTrail
from tests.fakes.sharing import sharing_parts

VAULT = Vcluster("vault", VclusterKind.SENSITIVE, "vault")
ALICE = Actor(sub="1", user="alice")
CLAIMANT = Actor(sub="1", user="alice", role=Role.CLAIMING_USER)
BOB = Actor(sub="2", user="bob")
CAROL = Actor(sub="3", user="carol")
PHYSICIST = Actor(sub="5", user="pat", role=Role.TENANT_ADMIN, tenant="physics")
BIOLOGIST = Actor(sub="6", user="ben", role=Role.TENANT_ADMIN, tenant="biology")
ROOT = Actor(sub="7", user="root", role=Role.SYSTEM_ADMIN)
OPERATOR = Actor(sub="8", user="olaf", role=Role.OPERATOR)
REVIEWER = Actor(sub="9", user="rita", role=Role.COMPLIANCE_REVIEWER, tenant="physics")
STRANGER = Actor(sub="10", user="rob", role=Role.COMPLIANCE_REVIEWER, tenant="biology")
NOBODYS = Actor(sub="11", user="nora", role=Role.COMPLIANCE_REVIEWER)
ON_JOBS = (
    Permission.VIEW_ALLOCATIONS,
    Permission.READ_OUTPUT,
    Permission.READ_MEASUREMENTS,
    Permission.ATTACH_ALLOCATION,
    Permission.CANCEL_ALLOCATION,
    Permission.SHARE_ALLOCATION,
    Permission.VIEW_SHARES,
    Permission.SWITCH_TELEMETRY,
)
ISOLATION, ABSENT = "403", "404"


class Site:
    """The job 1 is alice's sensitive work, 2 is an ordinary one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.scheduler.accounts = ACCOUNTS
        began = self.clock.now().replace(microsecond=0) - timedelta(hours=1)
        self.began = began
        for number, vcluster in ((1, "vault"), (2, None)):
            self.scheduler.allocations.append(
                allocation(number, "alice", "theory", submitted=began, vcluster=vcluster)
            )
        self.sharing = sharing_parts(InMemoryStateStore(self.clock))
        self.trail = RequiredTrail()
        self.claims = FixedClaims((node_claim("alice", "n1"),))
        sensitive = SensitiveWork(Vclusters((VAULT,)), self.claims)
        self.acts = SensitiveActs(sensitive, self.trail)
        self.finder = AllocationFinder(
            self.scheduler, self.clock, self.sharing.shares, sensitive, self.acts
        )

    def access(self, permission: Permission) -> OutputAccess:
        return OutputAccess(self.finder, self.sharing.notes, self.clock, permission, self.acts)

    async def finds(self, actor: Actor, permission: Permission, name: str = "1") -> str:
        try:
            return (await self.finder.find(actor, permission, name)).standing.value
        except PermissionRefused as refused:
            return ISOLATION if refused.message.startswith("SensitiveIsolation: ") else "refused"
        except NotFound:
            return ABSENT


@pytest.fixture
def site() -> Site:
    return Site()


_CARD_ONLY = dict.fromkeys(ISOLATED, ISOLATION)
EXPECTED: dict[str, tuple[Actor, dict[Permission, str]]] = {
    "owner": (
        ALICE,
        dict.fromkeys(ON_JOBS, "owner") | {Permission.SHARE_ALLOCATION: ISOLATION},
    ),
    "claiming user": (
        CLAIMANT,
        dict.fromkeys(ON_JOBS, "owner") | {Permission.SHARE_ALLOCATION: ISOLATION},
    ),
    "another": (BOB, dict.fromkeys(ON_JOBS, ABSENT)),
    "coordinator": (
        CAROL,
        dict.fromkeys(ON_JOBS, "coordinator") | _CARD_ONLY,
    ),
    "tenant admin": (PHYSICIST, dict.fromkeys(ON_JOBS, "tenant admin") | _CARD_ONLY),
    "tenant admin of another": (BIOLOGIST, dict.fromkeys(ON_JOBS, ABSENT)),
    "system admin": (ROOT, dict.fromkeys(ON_JOBS, "system admin") | _CARD_ONLY),
    "operator": (OPERATOR, dict.fromkeys(ON_JOBS, ABSENT)),
    "reviewer": (
        REVIEWER,
        dict.fromkeys(ON_JOBS, ISOLATION)
        | {
            Permission.VIEW_ALLOCATIONS: "compliance reviewer",
            Permission.READ_OUTPUT: "compliance reviewer",
            Permission.CANCEL_ALLOCATION: ISOLATION,
        },
    ),
    "reviewer of another": (STRANGER, dict.fromkeys(ON_JOBS, ABSENT)),
    "reviewer of none": (NOBODYS, dict.fromkeys(ON_JOBS, ABSENT)),
}


@pytest.mark.spec("AUTH-4", "AUTH-7")
@pytest.mark.threat(2, 25)
@pytest.mark.parametrize(("who", "permission"), list(product(EXPECTED, ON_JOBS)))
async def test_every_role_and_permission(site: Site, who: str, permission: Permission) -> None:
    actor, expected = EXPECTED[who]
    assert await site.finds(actor, permission) == expected[permission]
    live = site.finder.find_live
    if expected[permission] == ISOLATION:
        with pytest.raises(PermissionRefused):
            live(actor, permission, "1")
    elif expected[permission] == ABSENT:
        assert live(actor, permission, "1") is None


@pytest.mark.spec("AUTH-7", "AUDIT-3")
@pytest.mark.threat(2)
async def test_a_refusal_is_recorded_and_its_repeats_are_not(site: Site) -> None:
    for _ in range(5):
        assert await site.finds(ROOT, Permission.ATTACH_ALLOCATION) == ISOLATION
        with pytest.raises(PermissionRefused):
            site.finder.find_live(ROOT, Permission.ATTACH_ALLOCATION, "1")
    (event,) = site.trail.refused
    assert (event.act, event.outcome) == (AuditAct.ATTACH_START, AuditOutcome.REFUSED)
    assert (event.sub, event.owner, event.of_tenant) == (ROOT.sub, "alice", "physics")
    assert await site.finds(PHYSICIST, Permission.ATTACH_ALLOCATION) == ISOLATION
    assert await site.finds(ROOT, Permission.READ_OUTPUT) == ISOLATION
    assert len(site.trail.refused) == 3
    site.clock.advance(61)
    assert await site.finds(ROOT, Permission.ATTACH_ALLOCATION) == ISOLATION
    assert len(site.trail.refused) == 4
    # Another's job that may not be known leaves nothing, and neither does an ordinary one.
    for actor in (BIOLOGIST, BOB):
        assert await site.finds(actor, Permission.ATTACH_ALLOCATION) == ABSENT
        assert await site.finds(actor, Permission.ATTACH_ALLOCATION, "2") == ABSENT
    assert len(site.trail.refused) == 4


async def test_what_was_refused_is_remembered_within_bounds(site: Site) -> None:
    job = site.scheduler.allocations[0]
    for number in range(5000):
        caller = Actor(sub=f"s-{number}", user="root1", role=Role.SYSTEM_ADMIN)
        site.acts.refused(caller, Permission.ATTACH_ALLOCATION, job, "", 0.0)
    assert len(site.trail.refused) == 5000
    assert len(site.acts._refused) == 4096


@pytest.mark.spec("AUTH-7")
async def test_a_share_made_before_opens_nothing(site: Site) -> None:
    now = site.clock.now()
    for number in (1, 2):
        await site.sharing.shares.begin(
            Share(
                allocation=f"{number}@{int(site.began.timestamp())}",
                owner="alice",
                user="bob",
                since=now,
                until=now + timedelta(hours=1),
            )
        )
    for permission in (Permission.VIEW_ALLOCATIONS, Permission.READ_OUTPUT):
        assert await site.finds(BOB, permission, "2") == "shared"
        assert await site.finds(BOB, permission, "1") == ABSENT


@pytest.mark.spec("AUTH-7")
async def test_a_share_does_not_keep_a_stream_open(site: Site) -> None:
    allocation = site.scheduler.allocations[0]
    for actor in (BOB, PHYSICIST, ROOT):
        with pytest.raises(NotFound):
            site.finder.check(actor, Permission.READ_OUTPUT, allocation)
    site.finder.check(ALICE, Permission.READ_OUTPUT, allocation)
    site.finder.check(REVIEWER, Permission.READ_OUTPUT, allocation)


@pytest.mark.spec("AUTH-5")
async def test_a_token_without_the_scope_reads_nothing(site: Site) -> None:
    submits = Actor(sub="1", user="alice", scopes=frozenset({WRITE_SCOPE}))
    assert await site.finds(submits, Permission.READ_OUTPUT) == ABSENT
    reads = Actor(sub="1", user="alice", scopes=frozenset({READ_SCOPE}))
    assert await site.finds(reads, Permission.READ_OUTPUT) == "owner"


@pytest.mark.spec("AUDIT-2", "AUDIT-3")
@pytest.mark.parametrize(
    ("actor", "permission", "act"),
    [
        (ALICE, Permission.READ_OUTPUT, AuditAct.LOG_READ),
        (REVIEWER, Permission.READ_OUTPUT, AuditAct.LOG_READ),
        (ALICE, Permission.READ_MEASUREMENTS, AuditAct.METRIC_READ),
    ],
)
async def test_every_read_is_recorded_first(
    site: Site, actor: Actor, permission: Permission, act: AuditAct
) -> None:
    access = site.access(permission)
    found = await access.find(actor, "1")
    site.trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await access.enter(actor, found, ReadKind.READ)
    assert await site.sharing.notes.of([found.allocation]) == ()
    site.trail.is_away = False
    session = await access.enter(actor, found, ReadKind.READ)
    (event,) = site.trail.events
    assert (event.act, event.sub, event.user) == (act, actor.sub, actor.user)
    assert (event.allocation, event.owner) == (found.allocation.ref, "alice")
    await session.check()
    readers = await site.sharing.notes.of([found.allocation])
    assert [each.standing for each in readers] == ([] if actor is ALICE else [Standing.REVIEWER])


@pytest.mark.spec("AUDIT-2")
async def test_reads_of_other_work_do_not_wait_for_the_audit_log(site: Site) -> None:
    site.trail.is_away = True
    access = site.access(Permission.READ_OUTPUT)
    await access.enter(ALICE, await access.find(ALICE, "2"), ReadKind.READ)
    assert site.trail.events == []


_SERVED_ON_CLAIMED_NODES = (
    Permission.READ_OUTPUT,
    Permission.READ_MEASUREMENTS,
    Permission.ATTACH_ALLOCATION,
    Permission.SWITCH_TELEMETRY,
)


@pytest.mark.spec("AUDIT-1")
@pytest.mark.parametrize("holder", ["", "bob"], ids=["unclaimed", "claimed by another"])
@pytest.mark.parametrize("permission", ON_JOBS)
async def test_work_on_nodes_that_its_owner_did_not_claim_is_not_served(
    site: Site, permission: Permission, holder: str
) -> None:
    site.claims.held = (node_claim(holder, "n1"),) if holder else ()
    if permission not in _SERVED_ON_CLAIMED_NODES:
        assert await site.finds(ALICE, permission) == EXPECTED["owner"][1][permission]
        assert not [each for each in site.trail.noted if "claimed" in each.detail]
        return
    with pytest.raises(
        PermissionRefused, match=r"SensitiveIsolation: .* runs on n1 that alice had"
    ):
        await site.finder.find(ALICE, permission, "1")
    (event,) = site.trail.noted
    assert (event.outcome, event.user) == (AuditOutcome.REFUSED, "alice")
    assert event.allocation.startswith("1@")
    assert event.detail == "it runs on n1 that alice had not claimed"
    # Who may not see it anyway learns no more than before.
    assert await site.finds(BOB, permission) == ABSENT
    assert await site.finds(ROOT, permission) == ISOLATION
    assert [each.user for each in site.trail.refused] == ["alice", ROOT.user]


@pytest.mark.spec("AUDIT-1")
async def test_a_reviewer_reads_nothing_of_work_on_unclaimed_nodes(site: Site) -> None:
    site.claims.held = ()
    assert await site.finds(REVIEWER, Permission.READ_OUTPUT) == ISOLATION
    assert site.trail.noted[0].user == "rita"


async def test_a_read_ends_when_the_claim_is_gone(site: Site) -> None:
    found = await site.finder.find(REVIEWER, Permission.READ_OUTPUT, "1")
    site.claims.held = ()
    with pytest.raises(PermissionRefused, match="SensitiveIsolation"):
        site.finder.check(REVIEWER, Permission.READ_OUTPUT, found.allocation)


async def test_before_claims_are_known_nothing_is_served(site: Site) -> None:
    site.claims.away = True
    with pytest.raises(Unavailable):
        await site.finder.find(ALICE, Permission.READ_OUTPUT, "1")
    await site.finder.find(ALICE, Permission.READ_OUTPUT, "2")


async def test_a_site_without_sensitive_work_has_none() -> None:
    nothing = SensitiveWork(Vclusters((Vcluster("batch", VclusterKind.HPC, "batch"),)))
    assert not nothing.is_possible
    assert not nothing.covers(allocation(1, "alice", "theory", vcluster="batch"))
