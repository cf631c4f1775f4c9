"""A compute node as the scheduler knows it, and the switches above it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NodeState(StrEnum):
    """Lattice's word for a node: what an owner or an operator has to know."""

    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `slurm_state` is Slurm's own word with its flags, `state` what it means here."""

    name: str
    state: NodeState
    slurm_state: str
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_allocated: int = 0
    memory_bytes: int = 0
    memory_allocated_bytes: int = 0
    gpus: int = 0
    gpus_allocated: int = 0
    switch: str = ""
    reason: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None
    slurm_version: str = ""
    booted: datetime | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of the network's tree: a leaf has nodes, the others have switches."""

    name: str
    level: int
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The switches of a cluster; empty where the site configured none."""

    switches: tuple[Switch, ...] = ()

    def leaf_of(self, node: str) -> str:
        """The switch a node hangs on, or empty."""
        for switch in self.switches:
            if switch.level == 0 and node in switch.nodes:
                return switch.name
        return ""
