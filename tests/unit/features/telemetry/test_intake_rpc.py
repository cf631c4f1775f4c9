"""The agents' rpcs: the node is the certificate's, whatever a message says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Token
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from lattice.base.errors import PermissionRefused
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
from tests.fakes.supervised import SupervisedLoops
from tests.unit.features.telemetry.test_intake import Site as IntakeSite
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


@asynccontextmanager
async def served(rpc: MetricIntakeRpc, folder: Path) -> AsyncIterator[Any]:
    """A stub of the rpcs, over a wire."""
    server = aio.server(interceptors=[_AsNode(lambda *_: None)])
    add_MetricIntakeServicer_to_server(rpc, server)
    address = f"unix:{folder}/grpc.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with aio.insecure_channel(address) as channel, asyncio.timeout(60):
            yield MetricIntakeStub(channel)
    finally:
        await server.stop(None)


def cpu_row(site: IntakeSite, *, declared: bool = False) -> pb.SampleRows:
    """A row of job 7, which runs on n1."""
    message = pb.SampleRows()
    if not declared:
        names = [pb.SeriesName(metric="cpu_seconds_total", source="host_local_probe")]
        message.layouts.add(number=1, job_id=7, started=site.started + 0.3, series=names)
    message.rows.add(layout=1, time_ms=round(site.now * 1000), values=struct.pack("<d", 1.5))
    return message


async def exchanged(call: Any, message: pb.SampleRows) -> pb.StoredSamples:
    await call.write(message)
    answer = await call.read()
    assert isinstance(answer, pb.StoredSamples)
    return answer


@pytest.mark.spec("TOP-2")
async def test_a_stream_is_answered_message_by_message(tmp_path: Path) -> None:
    site = IntakeSite()
    rpc = MetricIntakeRpc(site.intake, Site().telling)
    async with site.writing.running(SupervisedLoops()), served(rpc, tmp_path) as stub:
        call = stub.StreamSamples()
        assert (await exchanged(call, cpu_row(site))).stored == 1
        site.store.away = True
        again = await exchanged(call, cpu_row(site, declared=True))
        assert "did not answer" in again.again
        assert (again.stored, again.refused) == (0, 0)
        site.store.away = False
        assert (await exchanged(call, cpu_row(site, declared=True))).stored == 1
        await call.done_writing()
        assert await call.read() is aio.EOF  # type: ignore[attr-defined]
        assert rpc._streams == {}


@pytest.mark.spec("LIMIT-4")
async def test_a_newer_stream_of_a_node_ends_the_one_before(tmp_path: Path) -> None:
    site = IntakeSite()
    rpc = MetricIntakeRpc(site.intake, Site().telling)
    async with site.writing.running(SupervisedLoops()), served(rpc, tmp_path) as stub:
        before = stub.StreamSamples()
        await exchanged(before, cpu_row(site))
        newer = stub.StreamSamples()
        assert (await exchanged(newer, cpu_row(site))).stored == 1
        await before.write(cpu_row(site, declared=True))
        assert await before.read() is aio.EOF  # type: ignore[attr-defined]
        assert len(rpc._streams) == 1
        assert (await exchanged(newer, cpu_row(site, declared=True))).stored == 1


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_node_that_is_not_trusted_any_more_brings_nothing_on_an_open_stream(
    tmp_path: Path,
) -> None:
    site, trusted = IntakeSite(), True

    def believe(peer: PeerIdentity) -> None:
        if not trusted:
            raise PermissionRefused(f"node certificate revoked: {peer.name}")

    rpc = MetricIntakeRpc(site.intake, Site().telling, believe)
    async with site.writing.running(SupervisedLoops()), served(rpc, tmp_path) as stub:
        call = stub.StreamSamples()
        await exchanged(call, cpu_row(site))
        trusted = False
        await call.write(cpu_row(site, declared=True))
        with pytest.raises(aio.AioRpcError, match="revoked"):
            await call.read()
    assert len(site.store.writes) == 1


class _AsNode(GuardingInterceptor):
    """Takes everybody for n1."""

    async def admit(self, rpc: str, context: Context) -> None:  # noqa: ARG002
        _as_node("n1")


@pytest.mark.spec("WATCH-3")
async def test_over_a_wire_a_switch_is_told_and_who_leaves_is_forgotten(tmp_path: Path) -> None:
    site = Site()
    looking = asyncio.create_task(site.telling.run())
    try:
        async with served(MetricIntakeRpc(None, site.telling), tmp_path) as stub:
            call = stub.FollowJobs(pb.FollowJobsRequest())
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
