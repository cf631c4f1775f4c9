"""The feature over gRPC, for agents on their own listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from lattice.features.telemetry.convert.batches import batch_of
from lattice.features.telemetry.convert.job_settings import settings_message
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.job_settings_publisher import JobSettingsPublisher
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1 import telemetry_pb2_grpc


class MetricIntakeRpc(telemetry_pb2_grpc.MetricIntakeServicer):
    """`MetricIntake`. The certificate names the node."""

    def __init__(self, intake: SampleIntake | None, publisher: JobSettingsPublisher) -> None:
        """`intake` is None without a metric store: samples are then discarded."""
        self._intake = intake
        self._publisher = publisher

    async def StoreSamples(self, request: pb.SampleBatch, context: Any) -> pb.StoredSamples:
        if self._intake is None:
            # An agent can't change that, and need not keep the samples.
            return pb.StoredSamples(reason="this cluster has no metric store")
        taken = await self._intake.store(grpc_peer().name, batch_of(request))
        return pb.StoredSamples(stored=taken.stored, refused=taken.refused, reason=taken.reason)

    async def FollowJobs(
        self, request: pb.FollowJobsRequest, context: Any
    ) -> AsyncIterator[pb.JobsTold]:
        async for settings in self._publisher.follow(grpc_peer().name):
            yield settings_message(settings)
