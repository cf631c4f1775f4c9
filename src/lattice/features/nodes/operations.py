"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from lattice.base.call import Call
from lattice.base.choices import one_of
from lattice.base.operation import FieldRule, Operation
from lattice.domain.node import NodeState
from lattice.domain.operation import NodeAct
from lattice.domain.request_fields import EmptyRequest
from lattice.features.nodes.model import NodeActs, NodeCard, NodeList, VclusterList

_SERVICE = "lattice.v1.NodeService/"
_LONGEST_SET = 16 * 1024
_ACT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRequest:
    """Filters by state and partition."""

    states: Annotated[tuple[NodeState, ...], FieldRule(name="state", longest=8)] = ()
    partition: Annotated[str, FieldRule(longest=256)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """Names the node."""

    name: Annotated[str, FieldRule(longest=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """A request to operate nodes, with the reason."""

    name: Annotated[str, FieldRule(longest=_LONGEST_SET)]
    """One node, or several in Slurm's notation: `n[1-3]`."""
    reason: str = ""


def _act(rpc: str, act: NodeAct) -> Operation[Because, NodeActs]:
    return Operation(
        rpc=_SERVICE + rpc,
        method="POST",
        path=f"/nodes/{{name}}/{act.value}",
        request=Because,
        answer=NodeActs,
        timeout_s=_ACT_TIMEOUT_S,
        idempotent=True,
    )


LIST_NODES = Operation(
    rpc=_SERVICE + "ListNodes", method="GET", path="/nodes", request=NodesRequest, answer=NodeList
)
GET_NODE = Operation(
    rpc=_SERVICE + "GetNode",
    method="GET",
    path="/nodes/{name}",
    request=NodeRequest,
    answer=NodeCard,
)
LIST_VCLUSTERS = Operation(
    rpc=_SERVICE + "ListVclusters",
    method="GET",
    path="/vclusters",
    request=EmptyRequest,
    answer=VclusterList,
)
DRAIN_NODE = _act("DrainNode", NodeAct.DRAIN)
UNDRAIN_NODE = _act("UndrainNode", NodeAct.UNDRAIN)
DISABLE_NODE = _act("DisableNode", NodeAct.DISABLE)
ENABLE_NODE = _act("EnableNode", NodeAct.ENABLE)

ACTS = {
    NodeAct.DRAIN: DRAIN_NODE,
    NodeAct.UNDRAIN: UNDRAIN_NODE,
    NodeAct.DISABLE: DISABLE_NODE,
    NodeAct.ENABLE: ENABLE_NODE,
}
"""The operation of each act."""


def list_nodes(*, states: tuple[str, ...] = (), partition: str = "") -> Call[NodeList]:
    """List all nodes, or those in some states or in a partition."""
    chosen = tuple(one_of(NodeState, each, "node state") for each in states)
    return LIST_NODES.call(NodesRequest(states=chosen, partition=partition))


def get_node(name: str) -> Call[NodeCard]:
    """Get one node."""
    return GET_NODE.call(NodeRequest(name=name))


def list_vclusters() -> Call[VclusterList]:
    """List the vClusters and how their nodes are."""
    return LIST_VCLUSTERS.call(EmptyRequest())


def operate_node(act: NodeAct | str, nodes: str, *, reason: str = "") -> Call[NodeActs]:
    """Drain, undrain, disable or enable nodes, given in Slurm's notation: `n[1-3]`.

    The operation is idempotent.
    """
    return ACTS[one_of(NodeAct, act)].call(Because(name=nodes, reason=reason))


SDK: Mapping[str, Callable[..., object]] = {
    "nodes": list_nodes,
    "node": get_node,
    "vclusters": list_vclusters,
    "operate_nodes": operate_node,
}
"""The verbs of the SDK, and the functions that make their calls."""
