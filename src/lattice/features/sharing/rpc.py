"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.sharing.convert import sharing_message
from lattice.features.sharing.service.sharing import SharingService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import sharing_pb2 as pb
from lattice.wire.v1 import sharing_pb2_grpc


class SharingRpc(sharing_pb2_grpc.SharingServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: SharingService) -> None:
        self._service = service

    async def ShareAllocation(
        self, request: pb.ShareAllocationRequest, context: Any
    ) -> pb.AllocationSharing:
        return sharing_message(
            await self._service.share(grpc_caller(), request.id, request.user, request.duration_s)
        )

    async def UnshareAllocation(
        self, request: pb.UnshareAllocationRequest, context: Any
    ) -> pb.AllocationSharing:
        return sharing_message(await self._service.unshare(grpc_caller(), request.id, request.user))

    async def ListShares(self, request: pb.ListSharesRequest, context: Any) -> pb.AllocationSharing:
        return sharing_message(await self._service.sharing(grpc_caller(), request.id))
