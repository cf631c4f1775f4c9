"""Lattice is upgraded under people and rolled back, a server and a node at a time.

Jobs write, people follow their output, hold terminals, watch and call, with clients of both
releases. Nothing of it ends, and no line is lost or doubled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import lattice
from lab.earlier import LAST
from lab.fixtures import lab_name
from lab.laboratory import Lab
from lab.lattice_upgrade import LatticeUpgrade
from lab.other_python import LAB_PYTHON
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked
from tests.e2e.upgrade_load import load
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(1200)]

NODES = ("n1", "n2", "n3")


@pytest.fixture
def rolling() -> Iterator[tuple[Lab, LatticeUpgrade]]:
    # The machine's own Slurm: the earlier release does not know the newest one.
    own = Lab(lab_name("rolling"), slurm="22.05", servers=2)
    upgrade = LatticeUpgrade(own, LAST)
    upgrade.begin_earlier()
    try:
        own.up()
        yield own, upgrade
    finally:
        own.down(purge=True)


def checks(olga: Person, url: str) -> dict[str, Any]:
    """What doctor finds at one of the servers, by id."""
    env = {**olga.bearer, "LATTICE_API_URL": url}
    said = olga.lattice("admin", "doctor", "-o", "json", env=env)
    return {each["id"]: each for each in json.loads(said.out)["checks"]}


def _servers(olga: Person, url: str) -> tuple[str, str]:
    found = checks(olga, url)["server.versions"]
    return found["state"], found["evidence"]


def versions(olga: Person) -> dict[str, str]:
    """Of each node's agent, as it is listed."""
    shown = olga.asks("admin", "agents")["agents"]
    return {each["node"]: each["version"] for each in shown if each["link"] == "linked"}


@pytest.mark.spec("OPS-8", "LOG-3", "ATTACH-1", "WATCH-1", "CLI-3")
def test_everything_goes_on_while_lattice_is_upgraded_and_rolled_back(
    rolling: tuple[Lab, LatticeUpgrade],
) -> None:
    lab, upgrade = rolling
    first = lab.servers[0]
    olga = administrator(lab)
    old, new = LAST.version, lattice.__version__
    eventually(lambda: versions(olga), lambda found: found == dict.fromkeys(NODES, old))
    with load(lab, LAST.program, lambda name: LAB_PYTHON.parent / name) as people:
        people.goes_on()
        # An agent of the next release before its servers: not the order of the page, but it works.
        upgrade.node("n3")
        _has(olga, "n3", new)
        people.goes_on()

        upgrade.server(1)
        people.goes_on()
        found = checks(olga, first.url)
        assert found["server.versions"]["state"] == "warning"
        assert found["server.versions"]["evidence"].endswith(f": {old}")
        assert found["agents.versions"]["state"] == "ok"
        assert found["agents.versions"]["evidence"] == f"server {new}; n[1-2]: {old}; n3: {new}"
        upgrade.server(2)
        people.goes_on()
        # The entry of a server that stopped may stay until its lease ends.
        eventually(lambda: _servers(olga, first.url), lambda found: found == ("ok", new))

        for node in ("n1", "n2"):
            upgrade.node(node)
            _has(olga, node, new)
            people.goes_on()
        found = checks(olga, first.url)["agents.versions"]
        assert (found["state"], found["evidence"]) == ("ok", new)
        people.open_terminals()

        for node in ("n2", "n1"):
            upgrade.node(node, back=True)
            _has(olga, node, old)
            people.goes_on()
        upgrade.server(2, back=True)
        people.goes_on()
        assert checks(olga, first.url)["server.versions"]["state"] == "warning"
        upgrade.server(1, back=True)
        eventually(lambda: set(linked(olga)), lambda found: found == set(NODES))
        people.goes_on()
        upgrade.node("n3", back=True)
        _has(olga, "n3", old)
        people.goes_on()

        people.had_everything()


def _has(olga: Person, node: str, version: str) -> None:
    eventually(lambda: versions(olga), lambda found: found.get(node) == version)
