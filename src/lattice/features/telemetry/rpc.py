"""The feature over gRPC: for agents on their own listener, and for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from lattice.base.errors import UsageError
from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.batches import batch_of
from lattice.features.telemetry.convert.told import told_message
from lattice.features.telemetry.model import Telemetry, TelemetryOrder
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.switching import TelemetrySwitching
from lattice.features.telemetry.service.telling import JobTelling
from lattice.wire.convert import message_of
from lattice.wire.guard import grpc_caller
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1 import telemetry_pb2_grpc


class MetricIntakeRpc(telemetry_pb2_grpc.MetricIntakeServicer):
    """`MetricIntake`. The node is the one that its certificate names."""

    def __init__(self, intake: SampleIntake | None, telling: JobTelling) -> None:
        """`intake` is None where no metric store is named: samples are then taken for nothing."""
        self._intake = intake
        self._telling = telling

    async def StoreSamples(self, request: pb.SampleBatch, context: Any) -> pb.StoredSamples:
        if self._intake is None:
            # Nothing that an agent could do about it, and nothing worth keeping for.
            return pb.StoredSamples(reason="this cluster has no metric store")
        taken = await self._intake.store(grpc_peer().name, batch_of(request))
        return pb.StoredSamples(stored=taken.stored, refused=taken.refused, reason=taken.reason)

    async def FollowJobs(
        self, request: pb.FollowJobsRequest, context: Any
    ) -> AsyncIterator[pb.JobsTold]:
        async for told in self._telling.follow(grpc_peer().name):
            yield told_message(told)


class TelemetryRpc(telemetry_pb2_grpc.TelemetryServiceServicer):
    """`TelemetryService`, for services. The guard has verified the caller."""

    def __init__(self, service: TelemetrySwitching) -> None:
        self._service = service

    async def GetTelemetry(self, request: pb.GetTelemetryRequest, context: Any) -> pb.Telemetry:
        return _message(await self._service.telemetry(grpc_caller(), request.id))

    async def SetTelemetry(self, request: pb.SetTelemetryRequest, context: Any) -> pb.Telemetry:
        try:
            order = TelemetryOrder(mode=Mode(request.mode), duration_s=request.duration_s)
        except ValueError:
            raise UsageError(
                f"{request.mode[:40]!r} is no mode.", hint="Use prod, debug or audit."
            ) from None
        return _message(await self._service.switch(grpc_caller(), request.id, order))


def _message(answer: Telemetry) -> pb.Telemetry:
    return message_of(answer, pb.Telemetry)
