"""The agents' rpcs: the node is the certificate's, whatever a message says."""

from __future__ import annotations

import asyncio
from contextvars import Token
from datetime import UTC, datetime
from pathlib import Path

import pytest
from grpc import aio

from lattice.domain.peer import PeerIdentity, PeerKind
from lattice.features.telemetry.convert.batches import StoredBatch, Unpacked
from lattice.features.telemetry.rpc import MetricIntakeRpc
from lattice.wire import peerguard
from lattice.wire.interceptor import Context, GuardingInterceptor
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import (
    MetricIntakeStub,
    add_MetricIntakeServicer_to_server,
)
from tests.unit.features.telemetry.test_job_settings_publisher import Site


class Intake:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Unpacked]] = []

    async def store(self, node: str, batch: Unpacked) -> StoredBatch:
        self.asked.append((node, batch))
        return StoredBatch(3, 1, "why")


def _as_node(name: str) -> Token[PeerIdentity]:
    now = datetime.now(UTC)
    return peerguard._PEER.set(
        PeerIdentity(
            kind=PeerKind.NODE, name=name, cluster="lab", serial=1, not_before=now, not_after=now
        )
    )


@pytest.mark.spec("TOP-2")
async def test_samples_are_the_calling_nodes() -> None:
    intake = Intake()
    rpc = MetricIntakeRpc(intake, Site().telling)  # type: ignore[arg-type]
    token = _as_node("n2")
    try:
        stored = await rpc.StoreSamples(pb.SampleBatch(lost_total=4), None)
    finally:
        peerguard._PEER.reset(token)
    assert (stored.stored, stored.refused, stored.reason) == (3, 1, "why")
    assert [(node, batch.lost_total) for node, batch in intake.asked] == [("n2", 4)]


async def test_without_a_store_samples_are_taken_for_nothing() -> None:
    rpc = MetricIntakeRpc(None, Site().telling)
    stored = await rpc.StoreSamples(pb.SampleBatch(), None)
    assert (stored.stored, stored.reason) == (0, "this cluster has no metric store")


@pytest.mark.spec("TOP-2")
async def test_a_node_is_told_of_its_own_jobs() -> None:
    site = Site()
    site.telling.check()
    rpc = MetricIntakeRpc(None, site.telling)
    token = _as_node("n2")
    try:
        told = rpc.FollowJobs(pb.FollowJobsRequest(), None)
        first = await anext(told)
    finally:
        peerguard._PEER.reset(token)
    assert first.usual == "prod"
    assert [(each.job_id, list(each.indices)) for each in first.gpus] == [(2, [0, 3])]
    await told.aclose()  # type: ignore[attr-defined]


class _AsNode(GuardingInterceptor):
    """Takes everybody for n1."""

    async def admit(self, rpc: str, context: Context) -> None:  # noqa: ARG002
        _as_node("n1")


@pytest.mark.spec("WATCH-3")
async def test_over_a_wire_a_switch_is_told_and_who_leaves_is_forgotten(tmp_path: Path) -> None:
    site = Site()
    looking = asyncio.create_task(site.telling.run())
    server = aio.server(interceptors=[_AsNode(lambda *_: None)])
    add_MetricIntakeServicer_to_server(MetricIntakeRpc(None, site.telling), server)
    address = f"unix:{tmp_path}/grpc.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with aio.insecure_channel(address) as channel, asyncio.timeout(60):
            call = MetricIntakeStub(channel).FollowJobs(pb.FollowJobsRequest())
            first = await call.read()
            assert list(first.modes) == []
            until = await site.debug()
            (mode,) = (await call.read()).modes
            assert (mode.job_id, mode.mode, mode.until) == (1, "debug", until)
            call.cancel()
            while site.telling._listeners:
                await asyncio.sleep(0.01)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await server.stop(None)
