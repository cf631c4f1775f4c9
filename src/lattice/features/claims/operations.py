"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.claims.model import ClaimAnswer, ClaimList, ClaimOrder, ReleaseOrder

_SERVICE = "lattice.v1.ClaimService/"
_ACT_TIMEOUT_S = 30.0

LIST_CLAIMS = Operation(
    rpc=_SERVICE + "ListClaims",
    method="GET",
    path="/claims",
    request=EmptyRequest,
    answer=ClaimList,
)
CLAIM_NODES = Operation(
    rpc=_SERVICE + "ClaimNodes",
    method="POST",
    path="/claims",
    request=ClaimOrder,
    answer=ClaimAnswer,
    timeout_s=_ACT_TIMEOUT_S,
    idempotent=True,
)
RELEASE_NODES = Operation(
    rpc=_SERVICE + "ReleaseNodes",
    method="POST",
    path="/claims/release",
    request=ReleaseOrder,
    answer=ClaimAnswer,
    timeout_s=_ACT_TIMEOUT_S,
)


def list_claims() -> Call[ClaimList]:
    """List the claims in force that the caller may see."""
    return LIST_CLAIMS.call(EmptyRequest())


def claim_nodes(nodes: str, *, reason: str = "") -> Call[ClaimAnswer]:
    """Claim nodes for the caller's sensitive work, given in Slurm's notation: `n[1-3]`.

    The operation is idempotent.
    """
    return CLAIM_NODES.call(ClaimOrder(nodes=nodes, reason=reason))


def release_nodes(target: str) -> Call[ClaimAnswer]:
    """Release a whole claim, named by its id or by its nodes."""
    return RELEASE_NODES.call(ReleaseOrder(target=target))


SDK: Mapping[str, Callable[..., object]] = {
    "claims": list_claims,
    "claim_nodes": claim_nodes,
    "release_nodes": release_nodes,
}
"""The verbs of the SDK, and the functions that make their calls."""
