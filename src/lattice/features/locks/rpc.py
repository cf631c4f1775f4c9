"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.locks.convert import locks_message
from lattice.features.locks.model import LockOrder, UnlockOrder
from lattice.features.locks.service.locking import LockService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import locks_pb2 as pb
from lattice.wire.v1 import locks_pb2_grpc


class LockRpc(locks_pb2_grpc.LockServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: LockService) -> None:
        self._service = service

    async def CreateLock(self, request: pb.CreateLockRequest, context: Any) -> pb.LockList:
        order = LockOrder(
            kind=request.kind,
            target=request.target,
            reason=request.reason,
            duration_s=request.duration_s,
        )
        return locks_message(await self._service.lock(grpc_caller(), order))

    async def DeleteLock(self, request: pb.DeleteLockRequest, context: Any) -> pb.LockList:
        order = UnlockOrder(kind=request.kind, target=request.target)
        return locks_message(await self._service.unlock(grpc_caller(), order))

    async def ListLocks(self, request: pb.ListLocksRequest, context: Any) -> pb.LockList:
        return locks_message(await self._service.locks(grpc_caller()))
