"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Request

from lattice.access.actor import Actor
from lattice.domain.allocation import REFERENCE_PATTERN
from lattice.features.sharing.model import AllocationSharing, ShareOrder, UnshareOrder
from lattice.features.sharing.service.sharing import SharingService
from lattice.wire.guard import GuardedRoutes

_Id = Annotated[str, Path(pattern=REFERENCE_PATTERN)]


def offer(routes: GuardedRoutes[Actor], service: SharingService) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.SharingService/"

    @routes.get(
        "/allocations/{id}/shares", rpc=rpc + "ListShares", response_model=AllocationSharing
    )
    async def list_shares(request: Request, id: _Id) -> AllocationSharing:
        return await service.sharing(routes.caller(request), id)

    @routes.post(
        "/allocations/{id}/share",
        rpc=rpc + "ShareAllocation",
        body=ShareOrder,
        response_model=AllocationSharing,
    )
    async def share_allocation(request: Request, id: _Id) -> AllocationSharing:
        order = await routes.body(request, ShareOrder)
        return await service.share(routes.caller(request), id, order.user, order.duration_s)

    @routes.post(
        "/allocations/{id}/unshare",
        rpc=rpc + "UnshareAllocation",
        body=UnshareOrder,
        response_model=AllocationSharing,
    )
    async def unshare_allocation(
        request: Request, id: _Id, lattice_repeated: Annotated[bool, Header()] = False
    ) -> AllocationSharing:
        order = await routes.body(request, UnshareOrder)
        actor = routes.caller(request)
        return await service.unshare(actor, id, order.user, repeated=lattice_repeated)
