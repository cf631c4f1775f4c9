"""Builds the agent's part of telemetry: probes, sampling, sending, and the feed of metrics."""

from __future__ import annotations

import asyncio
import hashlib
import resource
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from grpc import aio

from lattice.adapters.helper.counters import HelperCounterLine
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.agent.config import AgentSettings
from lattice.agent.gpuhealth import GpuHealthWatch
from lattice.agent.metrics_door import MetricsDoor, door_place
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import MetricKind
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import Serve, StreamKind
from lattice.features.link.node.dialler import Dialling
from lattice.features.link.node.keeper import LinkLine
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.telemetry.node.buffer import SampleBuffer
from lattice.features.telemetry.node.direct_write import DirectIntake, WriteRoute
from lattice.features.telemetry.node.exposition import ExposedFigure, page
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.job_settings import JobSettings
from lattice.features.telemetry.node.plan import Plan
from lattice.features.telemetry.node.rows import SampleRow
from lattice.features.telemetry.node.sampler import Sampling
from lattice.features.telemetry.node.sender import SampleSender, Sending, StoredBatch
from lattice.features.telemetry.node.snapshots import SnapshotStore
from lattice.features.telemetry.node.steadytime import SteadyTime
from lattice.features.watch.node.judging import judge_factory
from lattice.probes.cgroup import CgroupProbe
from lattice.probes.dcgm import DcgmProbe
from lattice.probes.gpuhealth import ExpectedGpus, GpuHealthJudge
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.latency import LatencyProbe
from lattice.probes.machine import ExpectedMachine, machine_differences
from lattice.probes.network import NetworkProbe
from lattice.probes.nvidia import NvidiaProbe
from lattice.probes.probe import Probe, ProbeRoots
from lattice.probes.processes import ProcessesProbe
from lattice.probes.registry import Registry
from lattice.wire.carriers import EOF
from lattice.wire.status import error_of
from lattice.wire.v1 import link_pb2
from lattice.wire.v1 import telemetry_pb2 as pb
from lattice.wire.v1.telemetry_pb2_grpc import MetricIntakeStub

_STORE_S = 30.0
_LOOK_S = 2.0
_PATIENCE_S = 2.0
"""A probe that takes longer counts as failed: a request for a job's metrics waits no longer."""
_MIB = 1024 * 1024


class TelemetryParts:
    """Measures this node's jobs. Call `close` at the end."""

    def __init__(
        self,
        told: AgentSettings,
        jobs: NodeJobs,
        dialling: Dialling,
        link: Callable[[], LinkLine | None],
        clock: Clock,
        servers: ServerTime,
        followed: Callable[[], Iterable[FollowedFile]],
        process: Callable[[], Iterable[ExposedFigure]] = tuple,
    ) -> None:
        """`link` returns the current link; `followed` the files with collected output.

        `process` returns the agent's own metrics other than telemetry.
        """
        config = told.config.telemetry
        self._node = told.node
        self._enabled = config.enabled
        self._process = process
        share = _share_of(told.node)
        self.time = SteadyTime(clock, lambda: servers.ahead_s)
        linked = LinkedTelemetry(dialling, link)
        self.told = JobSettings(linked.follow, self.time.now, share=share)
        self._counters = HelperCounterLine(told.config.helper.socket, clock)
        expected = told.config.expected
        nvidia = NvidiaProbe(self.told.gpus_of, clock, devices=told.config.gpus.devices)
        machine = ExpectedMachine(expected.cpu_cores, expected.memory_gb)
        judge = GpuHealthJudge(
            ExpectedGpus(expected.gpu_count, expected.gpu_type), machine_differences(machine)
        )
        self.gpu_health = GpuHealthWatch(nvidia.condition, judge, clock)
        self._registry = _registry(told, nvidia, self._counters, clock)
        self.buffer = SampleBuffer(self.time.now, config.buffer_mb * _MIB)
        self.time.on_leap = self.buffer.shift
        self.output = OutputSigns(followed, self.time.now)
        self.gpus_of = nvidia.uuids_of
        self.sights = SnapshotStore(
            judge_factory(told.config.alerts.thresholds),
            self.output,
            told=servers.told,
            leaps=lambda: self.time.leaps,
        )
        plan = Plan(self.told.interval_s)
        self.sampling = Sampling(
            jobs,
            lambda wanted: self._registry.read(wanted, patience_s=_PATIENCE_S),
            self.time,
            plan,
            (self.sights, Waiting(self.buffer)),
        )
        self.told.on_change = self.sampling.nudge
        self.sendings = self._sendings(config.remote_write, linked, plan, share)
        self.feed = MetricFeed(self.sights, self.sampling)
        self._door = door_place(told.config.metrics.listen)

    @property
    def serving(self) -> dict[StreamKind, Serve]:
        """The streams that it serves."""
        return {StreamKind.METRICS: self.feed} if self._enabled else {}

    def loops(self) -> Iterator[Loop]:
        """Its background loops."""
        if self._enabled:
            yield Loop("telemetry", self.sampling.run, OnFailure.RESTART)
            for each in self.sendings:
                yield Loop(f"telemetry sending {each.way}", each.run, OnFailure.RESTART)
            yield Loop("telemetry told", self.told.run, OnFailure.RESTART)
        yield Loop("gpu health", self.gpu_health.run, OnFailure.RESTART)
        if self._door is not None:
            door = MetricsDoor(self._door, self.metrics_page)
            yield Loop("metrics door", door.run, OnFailure.RESTART)

    def _sendings(
        self, url: str, linked: LinkedTelemetry, plan: Plan, share: float
    ) -> tuple[Sending, ...]:
        """Sends through the servers, and directly to the store if the site configures that."""
        began = self.sights.began

        def sending(
            way: str, intake: SampleSender, wanted: Callable[[SampleRow], bool] | None = None
        ) -> Sending:
            return Sending(
                self.buffer,
                intake,
                began,
                way=way,
                share=share,
                interval_s=lambda: plan.shortest_s,
                wanted=wanted,
            )

        if not url:
            return (sending("over servers", linked),)
        # Most sites write through their servers; this saves memory on their nodes.
        from lattice.adapters.metricstore.onlywrite import OnlyWrite  # noqa: PLC0415

        ways = WriteRoute(self.told.stamps, began, self.time.now)
        straight = DirectIntake(self._node, self.told.stamps, OnlyWrite(url), linked)
        return (
            sending("over servers", linked, ways.over_servers),
            sending("straight", straight, ways.straight),
        )

    def close(self) -> None:
        """Close the threads of the probes and the connection to the helper."""
        self._registry.close()
        self._counters.close()

    def metrics_page(self) -> str:
        """For a scraper on this node."""
        return page(self._node, self.sights.newest(), self._figures(), self.time.now())

    def _figures(self) -> Iterator[ExposedFigure]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
        stored = sum(each.stored_total for each in self.sendings)
        refused = sum(each.refused_total for each in self.sendings)
        for name, kind, words, value in (
            ("samples_lost_total", counter, "samples dropped unsent", self.buffer.lost_total),
            ("samples_stored_total", counter, "samples stored", stored),
            ("samples_refused_total", counter, "samples refused", refused),
            ("samples_waiting", gauge, "samples not sent yet", self.buffer.samples),
            ("buffer_bytes", gauge, "memory they take", self.buffer.size_bytes),
            ("readings_total", counter, "readings of all probes", self.sampling.readings_total),
            (
                "reading_seconds_total",
                counter,
                "time they took, waiting included",
                self.sampling.reading_s_total,
            ),
            (
                "cpu_seconds_total",
                counter,
                "processor time of the agent",
                used.ru_utime + used.ru_stime,
            ),
        ):
            yield ExposedFigure(f"lattice_agent_{name}", kind, words, float(value))
        yield from self._process()


def _registry(
    told: AgentSettings, nvidia: NvidiaProbe, counters: HelperCounterLine, clock: Clock
) -> Registry:
    """If two probes give the same series, the first one counts."""
    config = told.config
    # These share a thread and the helper's readings; a probe that calls a driver has its own
    # thread.
    roots, look = ProbeRoots(), HelperReadings(counters, clock)
    together: list[Probe] = [
        CgroupProbe(roots, clock),
        ProcessesProbe(look, clock),
        NetworkProbe(roots, look, clock),
        LatencyProbe(look, clock),
    ]
    apart: list[Probe] = [nvidia]
    dcgm = DcgmProbe(config.telemetry.dcgm_url, nvidia.uuids_of, clock)
    # Without an exporter it only reports that, which needs no thread.
    (apart if config.telemetry.dcgm_url else together).append(dcgm)
    return Registry(apart, clock, together=together)


class Waiting:
    """Puts measurements into the buffer for sending."""

    def __init__(self, buffer: SampleBuffer) -> None:
        self._buffer = buffer

    def appeared(self, identity: JobIdentity) -> None:
        """Do nothing: there is nothing to send yet."""

    def measured(self, snapshot: JobSnapshot) -> None:
        self._buffer.add(snapshot)

    def ended(self, identity: JobIdentity) -> None:
        """Do nothing: buffered samples are still sent."""


class OutputSigns:
    """When a job last wrote output: when more of it was read than at the last call.

    It uses the offsets of the collected files, which are in memory. A stat of a file on a dead
    share would block the whole agent.
    """

    def __init__(
        self, followed: Callable[[], Iterable[FollowedFile]], now: Callable[[], float]
    ) -> None:
        self._followed = followed
        self._now = now
        self._seen: dict[JobIdentity, tuple[int, float | None]] = {}

    def __call__(self, identity: JobIdentity) -> float | None:
        follows = next((each for each in self._followed() if each.identity == identity), None)
        if follows is None:
            return self._seen.get(identity, (0, None))[1]
        read = sum(each.tail.offset for each in follows.capture.streams)
        before = self._seen.get(identity)
        if before is None:
            self._forget()
            self._seen[identity] = (read, None)
        elif read != before[0]:
            self._seen[identity] = (read, self._now())
        return self._seen[identity][1]

    def _forget(self) -> None:
        here = {each.identity for each in self._followed()}
        self._seen = {each: seen for each, seen in self._seen.items() if each in here}


class LinkedTelemetry:
    """Calls the replica that this node is linked to."""

    def __init__(self, dialling: Dialling, link: Callable[[], LinkLine | None]) -> None:
        self._dialling = dialling
        self._link = link

    async def store(self, batch: pb.SampleBatch) -> StoredBatch:
        """Send a batch. Raises `LatticeError`."""
        address = self._linked().address
        async with self._dialling.lane(address, link_pb2.BULK) as channel:
            stub: Any = MetricIntakeStub(channel)
            try:
                told: pb.StoredSamples = await stub.StoreSamples(batch, timeout=_STORE_S)
            except aio.AioRpcError as error:
                raise self._error(address, error) from None
        return StoredBatch(told.stored, told.refused, told.reason)

    async def follow(self) -> AsyncIterator[pb.JobsTold]:
        """Yield until the server ends it or the node gets a new link. Raises `LatticeError`."""
        line = self._linked()
        async with self._dialling.lane(line.address, link_pb2.BULK) as channel:
            stub: Any = MetricIntakeStub(channel)
            call = stub.FollowJobs(pb.FollowJobsRequest())
            reading: asyncio.Future[Any] | None = None
            try:
                while True:
                    reading = asyncio.ensure_future(call.read())
                    if not await self._come(reading, line):
                        return
                    message = reading.result()
                    if message is EOF:
                        return
                    yield message
            except aio.AioRpcError as error:
                raise self._error(line.address, error) from None
            finally:
                call.cancel()
                if reading is not None:
                    await asyncio.gather(reading, return_exceptions=True)

    async def _come(self, reading: asyncio.Future[Any], line: LinkLine) -> bool:
        """False if the node got a new link meanwhile: the server may be frozen or gone.

        An idle stream does not notice that; the link does, because it sends pings.
        """
        while not reading.done():
            await asyncio.wait((reading,), timeout=_LOOK_S)
            now = self._link()
            if not reading.done() and now is not None and now is not line:
                self._dialling.give_up(line.address, link_pb2.BULK)
                return False
        return True

    def _linked(self) -> LinkLine:
        line = self._link()
        if line is None:
            raise Unavailable("This node is not linked to any server.", hint="It dials again.")
        return line

    def _error(self, address: str, error: aio.AioRpcError) -> LatticeError:
        if error.code().name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            self._dialling.give_up(address, link_pb2.BULK)
        return error_of(address, error)


def _share_of(node: str) -> float:
    """A fixed value for each node, from 0 to 1, the same after every restart."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:4]) / 2**32
