"""With a real process in place of sacctmgr and scontrol."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice.adapters.slurm.commands import SlurmCommands
from lattice.adapters.slurm.site import SlurmSite
from lattice.adapters.slurm.tenants import SlurmTenantAccounts, parse_limits
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.tenants import AccountLimits, LimitChange, limit_options
from tests.fakes.in_memory_administration import InMemoryAdministration


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def accounts(
    programs: Path,
    sacctmgr: str,
    enforce: str = "limits",
    gate: InMemoryAdministration | None = None,
) -> SlurmTenantAccounts:
    settings = f"ClusterName = lab\\nAccountingStorageEnforce = {enforce}\\n"
    for name, script in (("scontrol", f"printf '{settings}'"), ("sacctmgr", sacctmgr)):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    commands = SlurmCommands()
    return SlurmTenantAccounts(commands, SlurmSite(commands, ""), gate or InMemoryAdministration())


@pytest.mark.spec("OPS-5")
def test_limits_of_accounts_are_read() -> None:
    text = (
        "root|||\n"
        "physics||cpu=100,gres/gpu=8,gres/gpu:a100=4,mem=5G,node=3|7\n"
        "physics|alice|node=1|1\n"
        "biology||gres/gpu=many|-3\n"
        "odd|x\n"
        "\n"
    )
    assert parse_limits(text) == {
        "root": AccountLimits(),
        "physics": AccountLimits(max_nodes=3, max_gpus=8, max_jobs=7),
        "biology": AccountLimits(),
    }


def test_limits_in_the_words_of_sacctmgr() -> None:
    assert limit_options(LimitChange()) == ()
    assert limit_options(LimitChange(max_gpus=-1)) == ("grptres=gres/gpu=-1",)
    assert limit_options(LimitChange(max_nodes=1, max_gpus=2, max_jobs=3)) == (
        "grptres=node=1,gres/gpu=2",
        "grpjobs=3",
    )


@pytest.mark.spec("OPS-5")
async def test_changes_go_to_the_gate_with_the_caller(programs: Path) -> None:
    gate = InMemoryAdministration()
    site = accounts(programs, "exit 1", gate=gate)
    await site.create("physics", LimitChange(max_nodes=1), by="sub-olga")
    await site.update("physics", LimitChange(max_nodes=2, max_jobs=-1), by="sub-olga")
    assert gate.limits == {"physics": AccountLimits(max_nodes=2)}
    assert gate.by == ["sub-olga"] * 2


@pytest.mark.parametrize(
    ("enforce", "enforced"),
    [("associations,limits", True), ("associations,limits,qos,safe", True), ("none", False),
     ("associations", False)],
)  # fmt: skip
async def test_whether_slurm_enforces_limits(programs: Path, enforce: str, enforced: bool) -> None:
    assert (await accounts(programs, "echo", enforce).limits()).enforced is enforced


@pytest.mark.spec("OPS-5")
@pytest.mark.parametrize(
    ("act", "command"),
    [
        ("create", "sacctmgr -i add account physics cluster=lab grptres=node=1"),
        ("update", "sacctmgr -i modify account where name=physics cluster=lab set grptres=node=1"),
    ],
)
async def test_a_refusal_names_the_command_to_run(programs: Path, act: str, command: str) -> None:
    gate = InMemoryAdministration()
    gate.allowed = frozenset()
    site = accounts(programs, "exit 1", gate=gate)
    with pytest.raises(ConfigurationError) as refused:
        await getattr(site, act)("physics", LimitChange(max_nodes=1), by="olga")
    assert (refused.value.hint or "").endswith(f"an administrator of Slurm runs: {command}")


async def test_a_gate_that_is_away_is_no_refusal(programs: Path) -> None:
    gate = InMemoryAdministration()
    gate.away = True
    with pytest.raises(Unavailable):
        await accounts(programs, "exit 1", gate=gate).update(
            "physics", LimitChange(max_nodes=1), by="olga"
        )
