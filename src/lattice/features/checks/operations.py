"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.features.checks.model import (
    USUAL_WALLTIME_S,
    CheckRequest,
    ChecksRequest,
    NodeChecks,
    SubmittedCheck,
)

_SERVICE = "lattice.v1.NodeCheckService/"
_ACT_TIMEOUT_S = 45.0

CHECK_NODES = Operation(
    rpc=_SERVICE + "CheckNodes",
    method="POST",
    path="/nodes/{name}/check",
    request=CheckRequest,
    answer=SubmittedCheck,
    timeout_s=_ACT_TIMEOUT_S,
)
LIST_NODE_CHECKS = Operation(
    rpc=_SERVICE + "ListNodeChecks",
    method="GET",
    path="/nodes/{name}/checks",
    request=ChecksRequest,
    answer=NodeChecks,
    timeout_s=_ACT_TIMEOUT_S,
)


def check_nodes(
    name: str, *, partition: str = "", project: str = "", walltime_s: int = USUAL_WALLTIME_S
) -> Call[SubmittedCheck]:
    """Submit a job that measures nodes, given in Slurm's notation: `n[1-3]`."""
    return CHECK_NODES.call(
        CheckRequest(name=name, partition=partition, project=project, walltime_s=walltime_s)
    )


def list_node_checks(name: str) -> Call[NodeChecks]:
    """List the newest results of nodes, and the checks that are under way."""
    return LIST_NODE_CHECKS.call(ChecksRequest(name=name))


SDK: Mapping[str, Callable[..., object]] = {
    "check_nodes": check_nodes,
    "node_checks": list_node_checks,
}
"""Method names of the SDK, and the functions that build their calls."""
