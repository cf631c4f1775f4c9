"""The whole lab as it was: what a story killed, froze or cut off is up, thawed and linked again."""

from __future__ import annotations

import json
from typing import Any

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

NODES = ("n1", "n2", "n3")


def administrator(lab: Lab) -> Person:
    """Olga has no account on the cluster, so the command runs as somebody's."""
    person = Person(lab, "alice")
    person._token = str(lab.oidc.token("olga", "openid admin")["access_token"])
    return person


def agents(olga: Person) -> dict[str, Any]:
    """Each node's agent as `lattice nodes` tells of it."""
    answer = olga.lattice("nodes", "-o", "json", env=olga.bearer)
    if answer.code != 0:
        return {}
    return {each["name"]: each["agent"] for each in json.loads(answer.out)["nodes"]}


def linked(olga: Person) -> dict[str, str]:
    """Node to replica, for those that are linked."""
    return {
        name: agent["replica"]
        for name, agent in agents(olga).items()
        if agent and agent["link"] == "linked"
    }


def put_right(lab: Lab, olga: Person) -> None:
    for server in lab.servers:
        server.heal_state()
        if server.process.condition == "frozen":
            server.process.thaw()
        server.start()
    for member in lab.etcd.members:
        if member.condition == "frozen":
            member.thaw()
        member.up()
    for name in NODES:
        node = lab.node(name)
        cut = not node.alive
        if cut:
            node.start()
        node.heal()
        if node.agent.process.condition == "frozen":
            node.agent.thaw()
        if not node.agent.process.alive:
            node.agent.start()
        if cut:
            lab.slurm.wait_nodes([name])
    eventually(lambda: linked(olga), lambda seen: set(seen) == set(NODES))
