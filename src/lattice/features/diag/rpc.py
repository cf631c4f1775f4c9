"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.diag.convert.page import diagnosis_message, query_of, stacks_message
from lattice.features.diag.service.diagnosing import DiagService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import diag_pb2 as pb
from lattice.wire.v1 import diag_pb2_grpc


class DiagnosticsRpc(diag_pb2_grpc.DiagnosticsServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: DiagService) -> None:
        self._service = service

    async def GetDiagnostics(self, request: pb.GetDiagnosticsRequest, context: Any) -> pb.Diagnosis:
        query = query_of(request)
        return diagnosis_message(await self._service.diagnose(grpc_caller(), request.id, query))

    async def GetStacks(self, request: pb.GetStacksRequest, context: Any) -> pb.StackPicture:
        return stacks_message(await self._service.stacks(grpc_caller(), request.id))
