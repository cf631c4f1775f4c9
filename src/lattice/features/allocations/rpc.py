"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.allocations.convert import (
    card_message,
    history_query,
    list_message,
    list_query,
)
from lattice.features.allocations.service import AllocationService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import allocations_pb2 as pb
from lattice.wire.v1 import allocations_pb2_grpc


class AllocationRpc(allocations_pb2_grpc.AllocationServiceServicer):
    """Thin: the guard has verified the caller, the service decides what she sees."""

    def __init__(self, service: AllocationService) -> None:
        self._service = service

    async def ListAllocations(
        self, request: pb.ListAllocationsRequest, context: Any
    ) -> pb.AllocationList:
        return list_message(await self._service.recent(grpc_caller(), list_query(request)))

    async def GetAllocation(
        self, request: pb.GetAllocationRequest, context: Any
    ) -> pb.AllocationCard:
        card = await self._service.card(grpc_caller(), request.id, last_output=request.last_output)
        return card_message(card)

    async def ListHistory(self, request: pb.ListHistoryRequest, context: Any) -> pb.AllocationList:
        return list_message(await self._service.history(grpc_caller(), history_query(request)))
