"""The switches, from `scontrol show topology`. Pure.

    SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
    SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]

A line that does not look like this is left out: a site without switches prints something else,
and block topologies print blocks.
"""

from __future__ import annotations

from lattice.domain.node import Switch, Topology
from lattice.domain.nodeset import NodeSet

_SWITCHES_LIMIT = 10_000


def parse_topology(text: str) -> Topology:
    """Every switch that can be read, as the lines give them."""
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
