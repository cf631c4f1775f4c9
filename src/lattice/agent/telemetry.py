"""The agent's part of telemetry, put together: probes, sampling, sending, answers to looks."""

from __future__ import annotations

import asyncio
import hashlib
import resource
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from grpc import aio

from lattice.adapters.helper.counters import HelperCounterLine
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.agent.config import Told
from lattice.agent.gpuhealth import GpuHealthWatch
from lattice.agent.metrics_door import MetricsDoor, door_place
from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Kind
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.stream import Serve, StreamKind
from lattice.features.link.node.dialling import Dialling
from lattice.features.link.node.keeper import Line
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.followed import Followed
from lattice.features.telemetry.node.buffer import SampleBuffer
from lattice.features.telemetry.node.exposition import Figure, page
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.plan import Plan
from lattice.features.telemetry.node.rows import Row
from lattice.features.telemetry.node.sampling import Sampling
from lattice.features.telemetry.node.sending import SampleIntake, Sending, Stored
from lattice.features.telemetry.node.sights import Sights
from lattice.features.telemetry.node.steadytime import SteadyTime
from lattice.features.telemetry.node.straight import StraightIntake, Ways
from lattice.features.telemetry.node.told import JobsTold
from lattice.features.watch.node.bounds import Bounds
from lattice.features.watch.node.judging import judge_factory
from lattice.probes.cgroup import CgroupProbe
from lattice.probes.dcgm import DcgmProbe
from lattice.probes.gpuhealth import ExpectedGpus, GpuHealthJudge
from lattice.probes.helperlook import HelperLook
from lattice.probes.latency import LatencyProbe
from lattice.probes.machine import ExpectedMachine, machine_differences
from lattice.probes.network import NetworkProbe
from lattice.probes.nvidia import NvidiaProbe
from lattice.probes.probe import Probe, Roots
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
"""A probe that takes longer has not answered: a look at a job waits for no more."""
_MIB = 1024 * 1024


class TelemetryParts:
    """What measures this node's jobs. `close` when it is over."""

    def __init__(
        self,
        told: Told,
        jobs: NodeJobs,
        dialling: Dialling,
        link: Callable[[], Line | None],
        clock: Clock,
        servers: ServerTime,
        followed: Callable[[], Iterable[Followed]],
        process: Callable[[], Iterable[Figure]] = tuple,
    ) -> None:
        """`link`: the one that stands; `followed`: whose output is collected.

        `process`: what the agent counts of itself besides telemetry.
        """
        config = told.config.telemetry
        self._node = told.node
        self._enabled = config.enabled
        self._process = process
        share = _share_of(told.node)
        self.time = SteadyTime(clock, lambda: servers.ahead_s)
        linked = LinkedTelemetry(dialling, link)
        self.told = JobsTold(linked.follow, self.time.now, share=share)
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
        self.sights = Sights(
            judge_factory(Bounds(**asdict(told.config.alerts))),
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
        """The streams it answers."""
        return {StreamKind.METRICS: self.feed} if self._enabled else {}

    def loops(self) -> Iterator[Loop]:
        """What has to run."""
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
        """Over the servers; and straight to the store, where the site has it so."""
        began = self.sights.began

        def sending(
            way: str, intake: SampleIntake, wanted: Callable[[Row], bool] | None = None
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
        # Most sites write over their servers, and keep this out of their nodes' memory.
        from lattice.adapters.metricstore.onlywrite import OnlyWrite  # noqa: PLC0415

        ways = Ways(self.told.stamps, began, self.time.now)
        straight = StraightIntake(self._node, self.told.stamps, OnlyWrite(url), linked)
        return (
            sending("over servers", linked, ways.over_servers),
            sending("straight", straight, ways.straight),
        )

    def close(self) -> None:
        """Let go of threads and of the helper."""
        self._registry.close()
        self._counters.close()

    def metrics_page(self) -> str:
        """For a scraper on this node."""
        return page(self._node, self.sights.newest(), self._figures(), self.time.now())

    def _figures(self) -> Iterator[Figure]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        counter, gauge = Kind.COUNTER, Kind.GAUGE
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
            yield Figure(f"lattice_agent_{name}", kind, words, float(value))
        yield from self._process()


def _registry(
    told: Told, nvidia: NvidiaProbe, counters: HelperCounterLine, clock: Clock
) -> Registry:
    """Where two probes tell of the same series, the first is believed."""
    config = told.config
    # These share a thread, and a look at the helper; what asks a driver has a thread of its own.
    roots, look = Roots(), HelperLook(counters, clock)
    together: list[Probe] = [
        CgroupProbe(roots, clock),
        ProcessesProbe(look, clock),
        NetworkProbe(roots, look, clock),
        LatencyProbe(look, clock),
    ]
    apart: list[Probe] = [nvidia]
    dcgm = DcgmProbe(config.telemetry.dcgm_url, nvidia.uuids_of, clock)
    # Without an exporter it only says so, for which it needs no thread.
    (apart if config.telemetry.dcgm_url else together).append(dcgm)
    return Registry(apart, clock, together=together)


class Waiting:
    """What was measured waits to be sent."""

    def __init__(self, buffer: SampleBuffer) -> None:
        self._buffer = buffer

    def appeared(self, identity: JobIdentity) -> None:
        """Nothing to send yet."""

    def measured(self, snapshot: JobSnapshot) -> None:
        self._buffer.add(snapshot)

    def ended(self, identity: JobIdentity) -> None:
        """What waits is sent all the same."""


class OutputSigns:
    """When a job last wrote output: when more of it was read than at the last look.

    By the places of what is collected, which are in memory: to ask a file on a dead share would
    stop the whole agent.
    """

    def __init__(
        self, followed: Callable[[], Iterable[Followed]], now: Callable[[], float]
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
    """The servers' side, over the replica that this node is linked to."""

    def __init__(self, dialling: Dialling, link: Callable[[], Line | None]) -> None:
        self._dialling = dialling
        self._link = link

    async def store(self, batch: pb.SampleBatch) -> Stored:
        """Raises `LatticeError`."""
        address = self._linked().address
        async with self._dialling.lane(address, link_pb2.BULK) as channel:
            stub: Any = MetricIntakeStub(channel)
            try:
                told: pb.StoredSamples = await stub.StoreSamples(batch, timeout=_STORE_S)
            except aio.AioRpcError as error:
                raise self._error(address, error) from None
        return Stored(told.stored, told.refused, told.reason)

    async def follow(self) -> AsyncIterator[pb.JobsTold]:
        """Until the server ends it or the node is linked anew. Raises `LatticeError`."""
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

    async def _come(self, reading: asyncio.Future[Any], line: Line) -> bool:
        """False if the node is linked anew meanwhile: the server may be frozen or gone.

        A stream on which nothing is sent does not notice; the link, which is pinged, does.
        """
        while not reading.done():
            await asyncio.wait((reading,), timeout=_LOOK_S)
            now = self._link()
            if not reading.done() and now is not None and now is not line:
                self._dialling.give_up(line.address, link_pb2.BULK)
                return False
        return True

    def _linked(self) -> Line:
        line = self._link()
        if line is None:
            raise Unavailable("This node is not linked to any server.", hint="It dials again.")
        return line

    def _error(self, address: str, error: aio.AioRpcError) -> LatticeError:
        if error.code().name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
            self._dialling.give_up(address, link_pb2.BULK)
        return error_of(address, error)


def _share_of(node: str) -> float:
    """Each node's own, 0 to 1, the same after every restart."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:4]) / 2**32
