"""What whoever stands behind the port `TenantAccounts` promises: in memory and a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.tenants import SlurmTenantAccounts
from lattice.domain.tenants import NO_LIMIT, AccountLimits, LimitChange, TenantAccounts
from tests.contract.gates import gate_administration
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.in_memory_tenants import InMemoryTenantAccounts
from tests.fakes.manual_clock import ManualClock

NAME = "contract-7.x"


@pytest.fixture(
    params=[
        "in memory",
        pytest.param("slurm", marks=pytest.mark.lab),
    ]
)
def accounts(request: pytest.FixtureRequest) -> Iterator[TenantAccounts]:
    if request.param == "in memory":
        yield InMemoryTenantAccounts(InMemoryScheduler(ManualClock()))
        return
    lab = request.getfixturevalue("lab")
    commands = SlurmCommands(lab.layout.slurm_conf, prefix=lab.control.room.argv([]))
    try:
        yield SlurmTenantAccounts(commands, SlurmSite(commands, ""), gate_administration(lab))
    finally:
        lab.ctl(["sacctmgr", "-i", "delete", "account", f"name={NAME}"], check=False)


async def limits(accounts: TenantAccounts) -> AccountLimits | None:
    reading = await accounts.limits()
    assert reading.enforced
    return reading.of.get(NAME)


@pytest.mark.spec("OPS-5")
async def test_limits_of_an_account_are_set_changed_and_taken_away(
    accounts: TenantAccounts,
) -> None:
    assert "root" in (await accounts.limits()).of
    assert await limits(accounts) is None
    await accounts.create(NAME, LimitChange(max_nodes=0, max_jobs=5), by="olga")
    assert await limits(accounts) == AccountLimits(max_nodes=0, max_jobs=5)
    await accounts.update(NAME, LimitChange(max_nodes=2, max_gpus=8), by="olga")
    assert await limits(accounts) == AccountLimits(max_nodes=2, max_gpus=8, max_jobs=5)
    await accounts.update(NAME, LimitChange(max_nodes=NO_LIMIT, max_jobs=NO_LIMIT), by="olga")
    assert await limits(accounts) == AccountLimits(max_gpus=8)
    await accounts.update(NAME, LimitChange(max_gpus=NO_LIMIT), by="olga")
    assert await limits(accounts) == AccountLimits()


@pytest.mark.spec("OPS-5")
async def test_an_account_without_limits(accounts: TenantAccounts) -> None:
    await accounts.create(NAME, LimitChange(), by="olga")
    assert await limits(accounts) == AccountLimits()
