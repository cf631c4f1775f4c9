"""What every administration behind the port promises: the fake, and the gate with a real Slurm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from lab.laboratory import Lab
from lattice.base.errors import ConfigurationError, Unavailable, UsageError
from lattice.domain.administration import Administration, NodeChange, TenantAct, VerbGroup
from lattice.domain.nodeset import NodeSet
from lattice.domain.tenants import NO_LIMIT, LimitChange
from tests.contract.gates import gate_administration
from tests.fakes.in_memory_administration import InMemoryAdministration

NAME = "contract-8.x"
NODES = NodeSet(["n1", "n2"])


@dataclass
class Site:
    """An administration, what it changed, and how to silence it."""

    administration: Administration
    states: Callable[[], set[str]]
    limits: Callable[[], str]
    silence: Callable[[], None]


@pytest.fixture(params=["in memory", pytest.param("gate", marks=pytest.mark.lab)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    if request.param == "in memory":
        fake = InMemoryAdministration()

        def limits() -> str:
            found = fake.limits[NAME]
            return f"{found.max_nodes}|{found.max_jobs}".replace("None", "")

        yield Site(
            fake,
            lambda: {fake.states[each] for each in NODES},
            limits,
            lambda: setattr(fake, "away", True),
        )
        return
    lab: Lab = request.getfixturevalue("lab")
    lab.jobs.cancel_all()

    def shown() -> str:
        options = ["-nP", "show", "assoc", f"account={NAME}", "user=", "format=grptres,grpjobs"]
        nodes, _, jobs = lab.ctl(["sacctmgr", *options]).stdout.strip().partition("|")
        return f"{nodes.removeprefix('node=')}|{jobs}"

    def states() -> set[str]:
        listed = lab.ctl(["sinfo", "-h", "-N", "-n", NODES.fold(), "-o", "%T"]).stdout.split()
        return {each.rstrip("*") for each in listed}

    try:
        yield Site(gate_administration(lab), states, shown, lab.gate.down)
    finally:
        lab.gate.up()
        lab.ctl(["scontrol", "update", "nodename=n[1-3]", "state=resume"], check=False)
        lab.ctl(["sacctmgr", "-i", "delete", "account", f"name={NAME}"], check=False)


@pytest.mark.spec("OPS-4")
async def test_nodes_are_drained_and_put_back(site: Site) -> None:
    change = site.administration.change_nodes
    await change(NodeChange.DRAIN, NODES, "olga: 'bad' \"DIMM\" = 3; $(x) 日本", by="olga")
    await change(NodeChange.DRAIN, NODES, "again", by="olga")
    assert site.states() == {"drained"}
    await change(NodeChange.RESUME, NODES, "", by="olga")
    assert site.states() == {"idle"}
    await change(NodeChange.DISABLE, NODES, "olga: smoke", by="olga")
    assert site.states() <= {"down", "drained"}
    await change(NodeChange.RESUME, NODES, "", by="olga")


@pytest.mark.spec("OPS-4")
@pytest.mark.parametrize("name", ["ALL", "localhost", "n9"])
async def test_no_name_means_more_than_one_node(site: Site, name: str) -> None:
    before = site.states()
    with pytest.raises((UsageError, ConfigurationError)):
        await site.administration.change_nodes(
            NodeChange.DRAIN, NodeSet(["n1", name]), "x", by="olga"
        )
    assert site.states() == before


@pytest.mark.spec("OPS-5")
async def test_a_tenant_gets_limits(site: Site) -> None:
    change = site.administration.change_tenant
    await change(TenantAct.CREATE, NAME, LimitChange(max_nodes=3, max_jobs=5), by="olga")
    assert site.limits() == "3|5"
    await change(TenantAct.UPDATE, NAME, LimitChange(max_nodes=NO_LIMIT, max_jobs=6), by="olga")
    assert site.limits() == "|6"
    with pytest.raises(UsageError):
        await change(TenantAct.UPDATE, "root", LimitChange(max_nodes=0), by="olga")


async def test_rights_are_all_that_the_site_allows(site: Site) -> None:
    rights = await site.administration.rights()
    assert (rights.groups, rights.user, rights.fault) == (tuple(VerbGroup), "slurm", "")


async def test_one_that_is_not_there_is_unavailable(site: Site) -> None:
    site.silence()
    with pytest.raises(Unavailable):
        await site.administration.rights()
    with pytest.raises(Unavailable):
        await site.administration.change_nodes(NodeChange.DRAIN, NODES, "x", by="olga")
