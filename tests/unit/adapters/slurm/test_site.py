"""What Slurm says of itself."""

from __future__ import annotations

import pytest

from lattice.adapters.slurm.site import SlurmSite
from tests.fakes.recorded_slurm import RecordedCommands


@pytest.fixture
def site(commands: RecordedCommands) -> SlurmSite:
    return SlurmSite(commands, "lattice")


@pytest.mark.parametrize(
    ("here", "past", "kinds"),
    [
        ("jobs", "none", "jobs"),
        ("none", "jobs,users", "past jobs and accounts"),
        ("accounts,jobs,nodes,partitions,usage", "jobs", "jobs, nodes, partitions and past jobs"),
    ],
)
async def test_what_slurm_hides_is_told_with_the_command(
    site: SlurmSite, commands: RecordedCommands, here: str, past: str, kinds: str
) -> None:
    commands.configuration_text = f"PrivateData             = {here}\n"
    commands.accounting_text = f"PrivateData            = {past}\n"
    await site.read_rights()
    assert site.hidden == (
        f"Slurm hides {kinds} of others from its account lattice (PrivateData). "
        "An administrator of Slurm runs: sacctmgr modify user lattice set adminlevel=operator"
    )


@pytest.mark.parametrize("level", ["Operator\n", "Administrator\n"])
async def test_with_the_right_nothing_is_hidden(
    site: SlurmSite, commands: RecordedCommands, level: str
) -> None:
    commands.configuration_text = "PrivateData             = jobs\n"
    await site.read_rights()
    assert site.hidden
    commands.admin_level_text = level
    await site.read_rights()
    assert site.hidden is None


@pytest.mark.parametrize(("here", "past"), [("none", "none"), ("cloud,usage", "usage"), ("", "")])
async def test_without_private_data_no_right_is_needed(
    site: SlurmSite, commands: RecordedCommands, here: str, past: str
) -> None:
    commands.configuration_text = f"PrivateData             = {here}\n"
    commands.accounting_text = f"PrivateData            = {past}\n"
    await site.read_rights()
    assert site.hidden is None


@pytest.mark.parametrize("reader", ["root", "slurm"])
async def test_slurm_s_own_user_sees_everything(commands: RecordedCommands, reader: str) -> None:
    commands.configuration_text = "PrivateData = jobs\nSlurmUser               = slurm(64030)\n"
    site = SlurmSite(commands, reader)
    await site.read_rights()
    assert site.hidden is None
