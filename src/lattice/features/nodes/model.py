"""What the feature answers, and which act a node's state allows: pure data and rules."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.domain.node import Node, NodeState
from lattice.domain.operation import NodeAct
from lattice.domain.source import Source

LONGEST_REASON = 200
"""Letters of a reason that reach Slurm, the actor's name among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """Nodes by name, with the word on where they come from."""

    nodes: tuple[Node, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCard:
    """One node, and the ids of the caller's own allocations on it."""

    node: Node
    sources: tuple[Source, ...]
    allocations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """One node after an act; not `changed` where it was so already."""

    name: str
    before: NodeState
    state: NodeState
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeActs:
    """Every node named, by name."""

    nodes: tuple[NodeOutcome, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """The body of a request to operate a node: why."""

    reason: str = ""


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
    """True if a node in this state needs nothing more for the act."""
    return state in _DONE[act]


def refusal(act: NodeAct, state: NodeState) -> tuple[str, str] | None:
    """Why the act does not go from this state, and what to do; `{names}` stands in the hint."""
    return _REFUSED.get((act, state))
