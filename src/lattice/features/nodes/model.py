"""Answers of the feature, and which act a node's state allows: pure data and rules."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.node import Node, NodeState
from lattice.domain.operation import NodeAct
from lattice.domain.source import Source
from lattice.domain.vcluster import VclusterKind

LONGEST_REASON = 200
"""Characters of a reason that reach Slurm, including the actor's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes by name, with their sources."""

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """One node, and the ids of the caller's own allocations on it."""

    node: Node
    sources: tuple[Source, ...]
    allocations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStateCount:
    """How many nodes are in a state."""

    state: NodeState
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VclusterCard:
    """A view as the site configured it, and its nodes now."""

    name: str
    kind: VclusterKind
    partition: str
    qos: str = ""
    nodes: int
    states: tuple[NodeStateCount, ...]
    """Only states that some node is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VclusterList:
    """All views, in the order of the configuration."""

    vclusters: tuple[VclusterCard, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """One node after an act; `changed` is False if nothing had to be done."""

    name: str
    before: NodeState
    state: NodeState
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeActs:
    """The outcome for every named node, sorted by name."""

    nodes: tuple[NodeOutcome, ...]


_DONE = {
    NodeAct.DRAIN: frozenset({NodeState.DRAINING, NodeState.DRAINED}),
    NodeAct.UNDRAIN: frozenset({NodeState.READY, NodeState.UNKNOWN}),
    NodeAct.DISABLE: frozenset({NodeState.DOWN}),
    NodeAct.ENABLE: frozenset({NodeState.READY, NodeState.UNKNOWN}),
}
_REFUSED: dict[tuple[NodeAct, NodeState], tuple[str, str]] = {
    (NodeAct.UNDRAIN, NodeState.DRAINING): (
        "still draining: work runs there, and undrain works from drained only",
        "`lattice admin drain {names} --wait` returns when it is drained; then undrain.",
    ),
    (NodeAct.UNDRAIN, NodeState.DOWN): (
        "down, not drained",
        "`lattice admin enable {names}` puts a node that is down back into service.",
    ),
    (NodeAct.ENABLE, NodeState.DRAINING): (
        "draining, not disabled",
        "Wait until it is drained, then `lattice admin undrain {names}`.",
    ),
}


def already(act: NodeAct, state: NodeState) -> bool:
    """Return True if a node in this state needs nothing for the act."""
    return state in _DONE[act]


def refusal(act: NodeAct, state: NodeState) -> tuple[str, str] | None:
    """Return why this state forbids the act, and a hint with a `{names}` placeholder."""
    return _REFUSED.get((act, state))
