"""The feature over gRPC, for services."""

from __future__ import annotations

from typing import Any

from lattice.features.report.convert import report_message
from lattice.features.report.service.reporting import ReportService
from lattice.wire.guard import grpc_caller
from lattice.wire.v1 import report_pb2 as pb
from lattice.wire.v1 import report_pb2_grpc


class ReportRpc(report_pb2_grpc.ReportServiceServicer):
    """Thin: the guard has verified the caller."""

    def __init__(self, service: ReportService) -> None:
        self._service = service

    async def GetReport(self, request: pb.GetReportRequest, context: Any) -> pb.Report:
        report = await self._service.report(grpc_caller(), request.id, request.attempt)
        return report_message(report)
