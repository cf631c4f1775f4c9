"""The whole lab as it was: what a story killed, froze or cut off is up, thawed and linked again."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from lab.laboratory import Lab
from lab.server import Server
from lattice.domain.source import AGREED
from tests.e2e.people import Person
from tests.eventually import eventually

NODES = ("n1", "n2", "n3")


def administrator(lab: Lab) -> Person:
    """Olga has no account on the cluster, so the command runs as somebody's."""
    person = Person(lab, "alice")
    person._token = str(lab.oidc.token("olga", "openid admin")["access_token"])
    return person


def agents(olga: Person) -> dict[str, Any]:
    """Each node's agent as `lattice nodes` shows it."""
    return _agents_in(_nodes(olga, olga.bearer))


def linked(olga: Person) -> dict[str, str]:
    """Node to replica, for those that are linked."""
    return _linked_in(_nodes(olga, olga.bearer))


def linked_at(olga: Person, server: Server) -> dict[str, str]:
    """The same as this replica has it from etcd; nothing while it answers from memory.

    One that was cut off remembers links that may be gone.
    """
    shown = _nodes(olga, {**olga.bearer, "LATTICE_API_URL": server.url})
    current = any(each["name"] == AGREED and each["ok"] for each in shown["sources"])
    return _linked_in(shown) if current else {}


def _nodes(olga: Person, env: dict[str, str]) -> dict[str, Any]:
    answer = olga.lattice("nodes", "-o", "json", env=env)
    shown: dict[str, Any] = json.loads(answer.out) if answer.code == 0 else {}
    return {"nodes": [], "sources": [], **shown}


def _agents_in(shown: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["agent"] for each in shown["nodes"]}


def _linked_in(shown: dict[str, Any]) -> dict[str, str]:
    return {
        name: agent["replica"]
        for name, agent in _agents_in(shown).items()
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
        _put_node_right(lab, name)
    for server in lab.servers:
        eventually(partial(linked_at, olga, server), lambda seen: set(NODES) <= set(seen))


def _put_node_right(lab: Lab, name: str) -> None:
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
