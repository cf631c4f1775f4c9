"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import AllocationRequest, Reference, Repeated
from lattice.features.sharing.model import AllocationSharing

_SERVICE = "lattice.v1.SharingService/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOrder:
    """The user to share with, and for how long; 0 is the server's default."""

    id: Reference
    user: str
    duration_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshareOrder:
    """The user to stop sharing with."""

    id: Reference
    user: str
    repeated: Repeated = False


LIST_SHARES = Operation(
    rpc=_SERVICE + "ListShares",
    method="GET",
    path="/allocations/{id}/shares",
    request=AllocationRequest,
    answer=AllocationSharing,
)
SHARE_ALLOCATION = Operation(
    rpc=_SERVICE + "ShareAllocation",
    method="POST",
    path="/allocations/{id}/share",
    request=ShareOrder,
    answer=AllocationSharing,
    # A repetition only moves the end of the share.
    idempotent=True,
)
UNSHARE_ALLOCATION = Operation(
    rpc=_SERVICE + "UnshareAllocation",
    method="POST",
    path="/allocations/{id}/unshare",
    request=UnshareOrder,
    answer=AllocationSharing,
    # A repetition finds nothing to end; that is no error.
    idempotent=True,
)


def list_shares(reference: str) -> Call[AllocationSharing]:
    """List the shares of an allocation, and who except the owner has read it."""
    return LIST_SHARES.call(AllocationRequest(id=reference))


def share_allocation(reference: str, user: str, *, duration_s: int = 0) -> Call[AllocationSharing]:
    """Let a user read an allocation's output for a limited time."""
    return SHARE_ALLOCATION.call(ShareOrder(id=reference, user=user, duration_s=duration_s))


def unshare_allocation(reference: str, user: str) -> Call[AllocationSharing]:
    """End the share with a user now."""
    return UNSHARE_ALLOCATION.call(UnshareOrder(id=reference, user=user))


SDK: Mapping[str, Callable[..., object]] = {
    "share": share_allocation,
    "unshare": unshare_allocation,
    "shares": list_shares,
}
"""Method names of the SDK, and the functions that build their calls."""
