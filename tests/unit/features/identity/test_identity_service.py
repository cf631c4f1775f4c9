"""Whom the server takes a caller for, and what it took each fact from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.access.actor import Actor, Role
from lattice.features.identity.model import AuthDiscovery, Fact
from lattice.features.identity.service.identity import IdentityService
from tests.fakes.cluster import ACCOUNTS
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def scheduler() -> InMemoryScheduler:
    scheduler = InMemoryScheduler(ManualClock())
    scheduler.accounts = ACCOUNTS
    return scheduler


@pytest.fixture
def service(scheduler: InMemoryScheduler) -> IdentityService:
    return IdentityService(scheduler, AuthDiscovery(idp_url="", client_id="", issuer=""))


@pytest.mark.spec("AUTH-11")
async def test_a_user_gets_the_tenant_of_her_accounts(service: IdentityService) -> None:
    who = await service.whoami(Actor(sub="1", user="alice", user_from="claim x"))
    assert who.tenant == Fact(value="physics", source="your Slurm accounts")
    assert who.user == Fact(value="alice", source="claim x")
    assert who.coordinates == ()


@pytest.mark.spec("AUTH-11")
@pytest.mark.parametrize(
    ("actor", "value", "said"),
    [
        (
            Actor(sub="1", user="carol", tenant="biology", tenant_from="claim tenant"),
            "biology",
            "claim tenant",
        ),
        (
            Actor(sub="1", user="carol", tenant="genomics", tenant_from="claim tenant"),
            "",
            "names no tenant",
        ),
        (Actor(sub="1", user="carol"), "physics", "coordinate"),
        (Actor(sub="1", user="alice"), "", "no single tenant"),
    ],
)
async def test_a_tenant_admin_is_told_which_tenant_and_why(
    service: IdentityService, actor: Actor, value: str, said: str
) -> None:
    who = await service.whoami(replace(actor, role=Role.TENANT_ADMIN))
    assert who.tenant.value == value
    assert said in who.tenant.source


@pytest.mark.spec("AUTH-11")
async def test_it_answers_before_slurm_does(
    service: IdentityService, scheduler: InMemoryScheduler
) -> None:
    scheduler.down = True
    who = await service.whoami(Actor(sub="1", user="alice", user_from="claim x"))
    assert who.user.value == "alice"
    assert who.tenant.value == ""
