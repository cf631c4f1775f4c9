"""The switches of a cluster, from `scontrol show topology`. Pure; malformed lines are skipped."""

from __future__ import annotations

from lattice.domain.node import Switch, Topology
from lattice.domain.nodeset import NodeSet

_SWITCHES_LIMIT = 10_000


def parse_topology(text: str) -> Topology:
    """Every valid switch, in the order of the lines."""
    switches = (_switch(line) for line in text.splitlines()[:_SWITCHES_LIMIT])
    return Topology(tuple(switch for switch in switches if switch is not None))


def leaves(topology: Topology) -> dict[str, str]:
    """The leaf switch by node."""
    return {
        node: switch.name
        for switch in topology.switches
        if switch.level == 0
        for node in switch.nodes
    }


def _switch(line: str) -> Switch | None:
    parts = dict(word.split("=", 1) for word in line.split() if "=" in word)
    name, level = parts.get("SwitchName"), parts.get("Level", "")
    if not name or not (level.isascii() and level.isdigit()) or len(level) > 3:
        return None
    try:
        return Switch(
            name,
            int(level),
            tuple(NodeSet.parse(parts["Nodes"])) if level == "0" and "Nodes" in parts else (),
            tuple(NodeSet.parse(parts["Switches"])) if "Switches" in parts else (),
        )
    except ValueError:
        return None
