"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.submit.convert import cancel_message, submit_message, submit_request
from lattice.features.submit.service.submitting import SubmitService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import submit_pb2 as pb
from lattice.wire.v1 import submit_pb2_grpc


class SubmitRpc(submit_pb2_grpc.SubmitServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: SubmitService) -> None:
        self._service = service

    async def SubmitAllocation(
        self, request: pb.SubmitAllocationRequest, context: Any
    ) -> pb.SubmitAnswer:
        key = request.idempotency_key
        return submit_message(
            await self._service.submit(grpc_caller(), submit_request(request), key)
        )

    async def CancelAllocation(
        self, request: pb.CancelAllocationRequest, context: Any
    ) -> pb.CancelAnswer:
        return cancel_message(await self._service.cancel(grpc_caller(), request.id))
