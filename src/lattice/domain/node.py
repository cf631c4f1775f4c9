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
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class AgentLink(StrEnum):
    """What is known of a node's agent."""

    LINKED = "linked"
    LOST = "lost"
    NEVER = "never seen"


class Condition(StrEnum):
    """How an agent is judged by the time since its link was lost; from good to bad."""

    READY = "ready"
    DEGRADED = "degraded"
    DOWN = "down"


class Health(StrEnum):
    """How an agent finds the node's own parts, its GPUs above all."""

    UNKNOWN = "unknown"
    """Nothing there was looked at."""
    HEALTHY = "healthy"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A judgement with why, the worst first."""

    health: Health = Health.UNKNOWN
    words: tuple[str, ...] = ()


NOT_LOOKED = NodeHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgent:
    """The other truth about a node: whether its agent is there, and since when."""

    link: AgentLink
    condition: Condition = Condition.READY
    replica: str = ""
    """Which of the servers it is linked to."""
    since: datetime | None = None
    version: str = ""
    health: Health = Health.UNKNOWN
    """Of the node's GPUs, as the agent last said."""
    health_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `slurm_state` is Slurm's own word with its flags, `state` what it means here.

    `agent` is None where the cluster has no agents at all, or nothing is known of them.
    """

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
    agent: NodeAgent | None = None


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
