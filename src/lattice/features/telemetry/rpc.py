"""The feature over gRPC, for agents on their own listener."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from lattice.base.errors import Unavailable
from lattice.domain.peer import PeerIdentity
from lattice.features.telemetry.convert.batches import StoredBatch, batch_of
from lattice.features.telemetry.convert.job_settings import settings_message
from lattice.features.telemetry.service.intake import SampleIntake
from lattice.features.telemetry.service.job_settings_publisher import JobSettingsPublisher
from lattice.features.telemetry.service.node_series import NodeSeries
from lattice.wire.peerguard import grpc_peer
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1 import telemetry_pb2_grpc

_NO_STORE = "this cluster has no metric store"
"""An agent can't change that, and need not keep the samples."""


class MetricIntakeRpc(telemetry_pb2_grpc.MetricIntakeServicer):
    """`MetricIntake`. The certificate names the node."""

    def __init__(
        self,
        intake: SampleIntake | None,
        publisher: JobSettingsPublisher,
        believe: Callable[[PeerIdentity], None] = lambda _: None,
    ) -> None:
        """`intake` is None without a metric store: samples are then discarded.

        `believe` raises `PermissionRefused` for a certificate that is not trusted any more.
        """
        self._intake = intake
        self._publisher = publisher
        self._believe = believe
        self._streams: dict[str, tuple[object, NodeSeries]] = {}
        """The newest stream of each node: what older ones declared is not kept."""

    async def StoreSamples(self, request: pb.SampleBatch, context: Any) -> pb.StoredSamples:
        if self._intake is None:
            return pb.StoredSamples(reason=_NO_STORE)
        return _answer(await self._intake.store(grpc_peer().name, batch_of(request)))

    async def StreamSamples(
        self, requests: AsyncIterator[pb.SampleRows], context: Any
    ) -> AsyncIterator[pb.StoredSamples]:
        if self._intake is None:
            async for _ in requests:
                yield pb.StoredSamples(reason=_NO_STORE)
            return
        peer, stream = grpc_peer(), object()
        self._streams[peer.name] = stream, self._intake.series_of(peer.name)
        try:
            async for message in requests:
                # A call is admitted once, but this one may last for weeks.
                self._believe(peer)
                if not self._is_newest(peer.name, stream):
                    return
                yield await self._stored(self._intake, peer.name, message)
        finally:
            if self._is_newest(peer.name, stream):
                del self._streams[peer.name]

    def _is_newest(self, node: str, stream: object) -> bool:
        return node in self._streams and self._streams[node][0] is stream

    async def _stored(
        self, intake: SampleIntake, node: str, message: pb.SampleRows
    ) -> pb.StoredSamples:
        try:
            return _answer(await intake.store_rows(self._streams[node][1], message))
        except Unavailable as error:
            return pb.StoredSamples(again=error.message)

    async def FollowJobs(
        self, request: pb.FollowJobsRequest, context: Any
    ) -> AsyncIterator[pb.JobsTold]:
        async for settings in self._publisher.follow(grpc_peer().name):
            yield settings_message(settings)


def _answer(taken: StoredBatch) -> pb.StoredSamples:
    return pb.StoredSamples(stored=taken.stored, refused=taken.refused, reason=taken.reason)
