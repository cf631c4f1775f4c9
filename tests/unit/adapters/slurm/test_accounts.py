from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.accounts import (
    AccountsReader,
    Associations,
    parse_associations,
    tree_of,
)
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.schema import AccountRow, AssociationRow
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.site import SlurmSite
from lattice.base.errors import Unavailable
from tests.fakes.manual_clock import ManualClock
from tests.fakes.recorded_slurm import RecordedCommands, RecordedSlurm, recording


def reader(
    slurm: RecordedSlurm, commands: RecordedCommands, cluster: str = "lab"
) -> AccountsReader:
    rest = slurm.rest()
    commands.configuration_text = f"ClusterName = {cluster}\n"
    dialects = Dialects(rest, known_schemas(), ManualClock())
    return AccountsReader(SlurmSite(commands, "lattice"), rest, dialects, commands)


async def test_the_recorded_tree(slurm: RecordedSlurm, commands: RecordedCommands) -> None:
    accounts = reader(slurm, commands)
    assert await accounts.read() is True
    assert accounts.tree.tenant_of("research") == "physics"
    assert accounts.tree.tenant_of("biology") == "biology"
    assert accounts.tree.coordinated_by("bob") == {"theory"}
    assert accounts.tree.members["alice"] == {"research"}
    await accounts.read_ids()
    assert accounts.associations.of(["alice"]) == (7,)
    assert accounts.associations.of(["bob", "alice"]) == (7, 8, 9)
    assert await accounts.read() is False


async def test_what_was_read_stays_when_slurmdbd_is_away(
    slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    accounts = reader(slurm, commands)
    await accounts.read()
    slurm.serve("slurmdb", "accounts", recording("slurmdbd-down"), 500)
    with pytest.raises(Unavailable, match="slurmdbd"):
        await accounts.read()
    assert accounts.tree.tenant_of("research") == "physics"


async def test_the_tree_is_read_even_where_sacctmgr_is_missing(
    slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    commands.missing = True
    accounts = reader(slurm, commands)
    await accounts.read()
    with pytest.raises(Unavailable, match="can't be run"):
        await accounts.read_ids()
    assert accounts.tree.tenant_of("research") == "physics"
    assert accounts.associations.of(["alice"]) is None


async def test_a_cluster_without_accounts_is_named(
    slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    with pytest.raises(Unavailable, match="no accounts for the cluster elsewhere"):
        await reader(slurm, commands, "elsewhere").read()


async def test_newer_slurm_is_asked_for_coordinators_and_needs_no_command(
    commands: RecordedCommands,
) -> None:
    slurm = RecordedSlurm("v0.0.44")
    commands.missing = True
    accounts = reader(slurm, commands)
    await accounts.read()
    await accounts.read_ids()
    assert ("/slurmdb/v0.0.44/accounts", {"WithCoordinators": "true"}) in slurm.asked
    assert accounts.tree.coordinated_by("bob") == {"theory"}


def test_other_clusters_of_the_store_are_left_out() -> None:
    tree = tree_of(
        "lab",
        [AccountRow("physics"), AccountRow("chemistry", frozenset({"eve"}))],
        [
            AssociationRow("lab", "physics", parent="root"),
            AssociationRow("other", "chemistry", parent="root"),
            AssociationRow("other", "physics", user="eve"),
        ],
    )
    assert set(tree.accounts) == {"physics"}
    assert tree.members == {}
    assert tree.coordinated_by("eve") == frozenset()


@pytest.mark.spec("AUTH-12")
@pytest.mark.parametrize(
    "line",
    [
        "7|lab|research|alice|extra",
        "x|lab|research|alice",
        "-7|lab|research|alice",
        "7|other|r|alice",
        "٧|lab|research|alice",
        "7|lab|research|",
        "|lab|r|alice",
        "99999999999|lab|r|alice",
        "alice",
        "",
    ],
)
def test_a_line_that_does_not_fit_is_left_out(line: str) -> None:
    assert parse_associations(line, "lab") == Associations()


def test_a_user_without_ids_means_that_nothing_can_be_left_out() -> None:
    known = parse_associations("7|lab|research|alice\n", "lab")
    assert known.of(["alice", "bob"]) is None
    assert known.of([]) == ()


@given(st.text(alphabet="0123456789|\nlab alice\x1b\u2028", max_size=80))
def test_any_text_of_sacctmgr_is_read(text: str) -> None:
    for ids in parse_associations(text, "lab").by_user.values():
        assert ids


async def test_hostile_account_names_stay_names(
    slurm: RecordedSlurm, commands: RecordedCommands
) -> None:
    name = "x\n7|lab|research|alice\x1b[2J"
    rows = [{"account": name, "cluster": "lab", "parent_account": "root", "user": None}]
    slurm.serve("slurmdb", "associations", json.dumps({"associations": rows}).encode())
    accounts = reader(slurm, commands)
    await accounts.read()
    assert accounts.tree.tenant_of(name) == name
