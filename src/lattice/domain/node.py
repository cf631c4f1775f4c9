"""A compute node in the scheduler's view, and the switches above it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lattice.domain.slices import NodeSlice


class NodeState(StrEnum):
    """Lattice's state of a node: what an owner or an operator needs."""

    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    CLAIMED = "claimed"
    """Ready, for the sensitive work of one person."""
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class AgentLink(StrEnum):
    LINKED = "linked"
    LOST = "lost"
    NEVER = "never seen"


class Condition(StrEnum):
    """The state of an agent by the time since its link was lost, from good to bad."""

    READY = "ready"
    DEGRADED = "degraded"
    DOWN = "down"


class HealthState(StrEnum):
    """The health of the node's parts, above all its GPUs, as the agent sees it."""

    UNKNOWN = "unknown"
    """Nothing was examined."""
    HEALTHY = "healthy"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """What an agent measured of itself. None, or an empty text, is not known.

    Sizes and the clock are those of the last report. An agent reports a value again when it has
    changed much, so that quiet nodes write nothing.
    """

    helper: str = ""
    """`ok`, or why its helper can't be reached."""
    latency: str = ""
    """`ok` if the kernel counts latencies by eBPF, or why it does not."""
    spool_bytes: int | None = None
    """Output on its disk that the object store does not have yet."""
    spool_most_bytes: int | None = None
    """How much of it there may be."""
    free_bytes: int | None = None
    """Free space on the disk of its state folder."""
    clock_ahead_s: float | None = None
    """How far the node's clock is ahead of the servers'."""


UNREPORTED = AgentFacts()


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A health state with its reasons, the worst first."""

    health: HealthState = HealthState.UNKNOWN
    words: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    """What the agent itself lacks on the node, such as its helper, and what to do."""
    agent: AgentFacts = UNREPORTED
    slices: tuple[NodeSlice, ...] = ()


NOT_LOOKED = NodeHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgent:
    """The agent of a node: whether it is linked, and since when."""

    link: AgentLink
    condition: Condition = Condition.READY
    replica: str = ""
    """The server that it is linked to."""
    since: datetime | None = None
    version: str = ""
    health: HealthState = HealthState.UNKNOWN
    """Of the node's GPUs, as the agent last reported."""
    health_words: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    """What is wrong with the agent itself, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `slurm_state` is Slurm's own state with its flags, `state` its meaning here.

    `agent` is None if the cluster has no agents, or nothing is known about them.
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
    claimed_by: str = ""
    """Whose claim it is in. Empty for callers who may not know."""
    slices: tuple[NodeSlice, ...] = ()
    """Its GPU slices. Empty for callers who are no operators."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of the network's tree: a leaf has nodes, the others have switches."""

    name: str
    level: int
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The switches of a cluster; empty if the site configured none."""

    switches: tuple[Switch, ...] = ()
