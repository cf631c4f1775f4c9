"""Tenants: who sees which, what is in use, and that only checked words reach Slurm."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, Role
from lattice.base.errors import ConfigurationError, NotFound, Unavailable, UsageError
from lattice.domain.accounts import Account, AccountTree
from lattice.domain.allocation import Allocation, State
from lattice.domain.tenants import NO_LIMIT, AccountLimits, LimitChange, LimitReading
from lattice.features.tenants.model import TenantUse, use_of
from lattice.features.tenants.service import TenantService
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_tenants import InMemoryTenantAccounts
from tests.fakes.manual_clock import ManualClock

ADA = Actor(sub="s-ada", user="ada", role=Role.SYSTEM_ADMIN)
CAROL = Actor(sub="s-carol", user="carol", role=Role.TENANT_ADMIN)
TREE = AccountTree.of(
    [
        Account("physics", "", frozenset({"carol"})),
        Account("research", "physics", frozenset({"lead"})),
        Account("theory", "physics"),
        Account("biology"),
        Account("genomics", "biology"),
    ],
    {"alice": ["research", "theory"], "bob": ["genomics"], "dave": ["physics"]},
)


def job(account: str, nodes: str = "", gpus: int | None = 0, **changes: object) -> Allocation:
    state = State.RUNNING if nodes else State.PENDING
    made = allocation(7, "alice", account=account, state=state)
    return replace(made, nodes=nodes, gpus=gpus, **changes)  # type: ignore[arg-type]


@dataclass
class Site:
    scheduler: InMemoryScheduler = field(default_factory=lambda: InMemoryScheduler(ManualClock()))
    log: list[tuple[str, str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler.accounts = TREE
        self.accounts = InMemoryTenantAccounts(self.scheduler)
        self.service = TenantService(self.scheduler, self.accounts, self)

    def acted(self, act: str, target: str, sub: str, detail: str, **_: str) -> None:
        self.log.append((act, target, sub, detail))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("OPS-5")
async def test_a_tenant_shows_its_limits_and_what_is_in_use(site: Site) -> None:
    await site.accounts.update("physics", LimitChange(max_nodes=4, max_jobs=9), by="ada")
    site.scheduler.allocations = [
        job("research", "n[1-2]", 8),
        job("theory", "n2", 2),
        job("physics"),
        job("genomics", "n3", 4),
        job("research", "n3", 4, state=State.COMPLETED),
    ]
    card = await site.service.tenant(ADA, "physics")
    tenant = card.tenant
    assert tenant.limits == AccountLimits(max_nodes=4, max_jobs=9)
    assert tenant.use == TenantUse(nodes=2, gpus=10, running=2, pending=1)
    assert (tenant.projects, tenant.users, tenant.admins) == (2, 2, ("carol",))
    assert [each.name for each in card.projects] == ["physics", "research", "theory"]
    assert card.projects[1].users == ("alice",)
    assert card.projects[1].coordinators == ("lead",)
    assert card.enforced
    assert [each.ok for each in card.sources] == [True, True]


def test_gpus_of_a_job_that_are_not_known_are_no_number() -> None:
    assert use_of([job("research", "n1", None)]).gpus is None


@pytest.mark.spec("OPS-5", "AUTH-12")
async def test_a_tenant_admin_reads_the_own_tenant_and_no_other_exists_for_her(site: Site) -> None:
    assert [each.name for each in (await site.service.tenants(ADA)).tenants] == [
        "biology",
        "physics",
    ]
    assert [each.name for each in (await site.service.tenants(CAROL)).tenants] == ["physics"]
    assert (await site.service.tenant(CAROL, "physics")).tenant.name == "physics"
    refusals = []
    for name in ("biology", "nothing", "research"):
        with pytest.raises(NotFound) as refused:
            await site.service.tenant(CAROL, name)
        refusals.append((refused.value.message.replace(name, "X"), refused.value.hint))
    assert len(set(refusals)) == 1


@pytest.mark.spec("OPS-5")
async def test_a_tenant_is_made_and_changed_in_the_callers_name(site: Site) -> None:
    made = await site.service.create(ADA, "chemistry", LimitChange(max_nodes=1))
    assert made.tenant.limits == AccountLimits(max_nodes=1)
    changed = await site.service.update(ADA, "chemistry", LimitChange(max_nodes=2, max_gpus=8))
    assert changed.tenant.limits == AccountLimits(max_nodes=2, max_gpus=8)
    again = await site.service.update(ADA, "chemistry", LimitChange(max_nodes=2))
    assert again.tenant.limits == changed.tenant.limits
    freed = await site.service.update(ADA, "chemistry", LimitChange(max_nodes=NO_LIMIT))
    assert freed.tenant.limits == AccountLimits(max_gpus=8)
    assert site.log == [
        ("create tenant", "chemistry", "s-ada", "max_nodes=1"),
        ("update tenant", "chemistry", "s-ada", "max_nodes=2 max_gpus=8"),
        ("update tenant", "chemistry", "s-ada", "max_nodes=-1"),
    ]


@pytest.mark.parametrize("name", ["physics", "research", "root"])
async def test_an_account_that_exists_is_not_made_again(site: Site, name: str) -> None:
    with pytest.raises(UsageError, match="already"):
        await site.service.create(ADA, name, LimitChange(max_nodes=1))
    assert site.accounts.acts == []


async def test_a_project_is_no_tenant(site: Site) -> None:
    with pytest.raises(NotFound):
        await site.service.update(ADA, "research", LimitChange(max_nodes=1))
    assert site.accounts.acts == []


@pytest.mark.parametrize("change", [LimitChange(max_nodes=-2), LimitChange(max_jobs=10**9)])
async def test_a_number_that_is_no_limit(site: Site, change: LimitChange) -> None:
    with pytest.raises(UsageError, match="limit"):
        await site.service.update(ADA, "physics", change)


@given(st.text(max_size=70))
def test_only_plain_names_reach_slurm(name: str) -> None:
    async def create() -> list[tuple[str, LimitChange]]:
        site = Site()
        try:
            await site.service.create(ADA, name, LimitChange(max_nodes=1))
        except UsageError:
            assert not site.accounts.acts
        return site.accounts.acts

    for reached, _ in asyncio.run(create()):
        assert set(reached) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert reached[0] not in "-."


async def test_without_the_accounting_limits_are_not_known_and_nothing_is_changed(
    site: Site,
) -> None:
    site.scheduler.past_down = True
    card = await site.service.tenant(ADA, "physics")
    assert (card.tenant.limits, card.enforced) == (None, None)
    assert [(each.name, each.ok) for each in card.sources] == [
        ("slurmctld", True),
        ("slurmdbd", False),
    ]
    for act in (
        site.service.create(ADA, "chemistry", LimitChange()),
        site.service.update(ADA, "physics", LimitChange(max_nodes=1)),
    ):
        with pytest.raises(Unavailable, match="can't be read"):
            await act


async def test_a_refusal_of_slurm_is_logged_and_has_the_command(site: Site) -> None:
    site.accounts.refuses = True
    with pytest.raises(ConfigurationError) as refused:
        await site.service.update(ADA, "physics", LimitChange(max_nodes=1))
    assert "sacctmgr -i" in (refused.value.hint or "")
    assert site.log == [("update tenant failed", "physics", "s-ada", "max_nodes=1")]


async def test_an_account_that_another_server_made_is_read_at_once(site: Site) -> None:
    class Newer(InMemoryTenantAccounts):
        async def limits(self) -> LimitReading:
            found = await super().limits()
            return LimitReading({**found.of, "chemistry": AccountLimits()}, found.enforced)

    service = TenantService(site.scheduler, Newer(site.scheduler), site)
    before = site.scheduler.looked_again
    await service.tenants(ADA)
    assert site.scheduler.looked_again == before + 1


@pytest.mark.spec("OPS-5")
async def test_a_tenant_that_slurm_does_not_list_yet_is_not_called_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = site.accounts.create

    async def late(name: str, change: LimitChange, *, by: str) -> None:
        await act(name, change, by=by)
        site.scheduler.accounts = TREE

    monkeypatch.setattr(site.accounts, "create", late)
    with pytest.raises(Unavailable, match="chemistry is made, and Slurm does not list it yet"):
        await site.service.create(ADA, "chemistry", LimitChange(max_nodes=1))
