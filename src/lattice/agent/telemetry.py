"""Builds the agent's part of telemetry: probes, sampling, sending, and the feed of metrics."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lattice.adapters.helper.counters import HelperCounterLine
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.agent.config import AgentSettings
from lattice.agent.gpuhealth import GpuHealthWatch
from lattice.agent.linked_telemetry import LinkedTelemetry
from lattice.agent.sections import AlertsSection
from lattice.agent.slices import SliceParts, SliceReader
from lattice.base.clock import Clock
from lattice.base.metrics_endpoint import MetricsEndpoint, local_metrics_address
from lattice.base.reload import Reload
from lattice.base.supervisor import Loop, OnFailure
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import MetricKind, MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.domain.run_events import RunEvent
from lattice.domain.stream import Serve, StreamKind
from lattice.features.link.node.dialler import Linked
from lattice.features.link.node.servertime import ServerTime
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.telemetry.node.buffer import SampleBuffer, SampleRow
from lattice.features.telemetry.node.direct_write import DirectIntake, WriteRoute
from lattice.features.telemetry.node.exposition import ExposedFigure, page
from lattice.features.telemetry.node.feed import MetricFeed
from lattice.features.telemetry.node.job_settings import JobSettings
from lattice.features.telemetry.node.plan import Plan
from lattice.features.telemetry.node.sampler import Sampling
from lattice.features.telemetry.node.sender import SampleSender, Sending
from lattice.features.telemetry.node.snapshots import SnapshotStore
from lattice.features.telemetry.node.steadytime import SteadyTime
from lattice.features.watch.node.judge import judge_factory
from lattice.probes.card_probe import CardProbe
from lattice.probes.gpuhealth import ExpectedGpus, GpuHealthJudge
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.machine import ExpectedMachine, machine_differences
from lattice.probes.node_cards import node_cards
from lattice.probes.probe import ProbeSite
from lattice.probes.registry import Registry, known_probes

_PATIENCE_S = 2.0
"""A probe that takes longer counts as failed: a request for a job's metrics waits no longer."""
_MIB = 1024 * 1024


class TelemetryParts:
    """Measures this node's jobs. Call `close` at the end."""

    def __init__(
        self,
        settings: AgentSettings,
        jobs: NodeJobs,
        link: Callable[[], Linked | None],
        clock: Clock,
        servers: ServerTime,
        followed: Callable[[], Iterable[FollowedFile]],
        process: Callable[[], Iterable[ExposedFigure]] = tuple,
        *,
        scraped: Callable[[Iterable[JobSnapshot]], Iterable[JobSnapshot]] = lambda each: each,
    ) -> None:
        """`link` returns the current link; `followed` the files with collected output.

        `process` returns the agent's own metrics other than telemetry. `scraped` chooses the jobs
        that a scraper on this node may see.
        """
        self._scraped = scraped
        config = settings.config.telemetry
        self._node = settings.node
        self._enabled = config.enabled
        self._process = process
        share = _share_of(settings.node)
        self.time = SteadyTime(clock, lambda: servers.ahead_s)
        linked = LinkedTelemetry(link)
        self.job_settings = JobSettings(linked.follow, self.time.now, share=share)
        self.counters = HelperCounterLine(settings.config.helper.socket, clock)
        expected = settings.config.expected
        cards = node_cards(self.job_settings.gpus_of, clock, settings.config.gpus.devices)
        machine = ExpectedMachine(expected.cpu_cores, expected.memory_gb)
        judge = GpuHealthJudge(
            ExpectedGpus(expected.gpu_count, expected.gpu_type), machine_differences(machine)
        )
        self.gpu_health = GpuHealthWatch(cards.condition, judge, clock)
        self._registry = _registry(settings, cards, self.counters, clock)
        self.buffer = SampleBuffer(self.time.now, config.buffer_mb * _MIB)
        self.time.on_leap = self.buffer.shift
        self.output = OutputSigns(followed, self.time.now)
        self.gpus_of = cards.uuids_of
        self.snapshots = SnapshotStore(
            judge_factory(settings.config.alerts.thresholds),
            self.output,
            to_server_time=servers.to_server_time,
            leaps=lambda: self.time.leaps,
            mode=self.job_settings.known_mode,
        )
        self.reloads = (Reload("alerts", self._judge_by),)
        self.slices = _slices(settings, self.gpu_health, clock)
        self.slice_reader = SliceReader(self.slices, self.job_settings.gpus_of, self._read_host)
        plan = Plan(self.job_settings.interval_s)
        self.sampling = Sampling(
            jobs,
            self.slice_reader.read,
            self.time,
            plan,
            (self.snapshots, Waiting(self.buffer)),
        )
        self.job_settings.on_change = self._settings_changed
        self.sendings = self._sendings(config.remote_write, linked, plan, share)
        self.feed = MetricFeed(self.snapshots, self.sampling)
        self._metrics_address = local_metrics_address(settings.config.metrics.listen)

    async def _read_host(
        self, jobs: Sequence[NodeJob]
    ) -> Mapping[JobIdentity, tuple[MetricReading, ...]]:
        return await self._registry.read(jobs, patience_s=_PATIENCE_S)

    @property
    def serving(self) -> dict[StreamKind, Serve]:
        return {StreamKind.METRICS: self.feed} if self._enabled else {}

    def loops(self) -> Iterator[Loop]:
        if self._enabled:
            yield Loop("telemetry", self.sampling.run, OnFailure.RESTART)
            for each in self.sendings:
                yield Loop(f"telemetry sending {each.route}", each.run, OnFailure.RESTART)
            yield Loop("telemetry told", self.job_settings.run, OnFailure.RESTART)
        yield Loop("gpu health", self.gpu_health.run, OnFailure.RESTART)
        if self.slices.guests:
            yield Loop("slices", self.slices.run, OnFailure.RESTART)
        if self._metrics_address is not None:
            endpoint = MetricsEndpoint(self._metrics_address, self.metrics_page)
            yield Loop("metrics door", endpoint.run, OnFailure.RESTART)

    def _sendings(
        self, url: str, linked: LinkedTelemetry, plan: Plan, share: float
    ) -> tuple[Sending, ...]:
        """Sends through the servers, and directly to the store if the site configures that."""
        began = self.snapshots.began

        def sending(
            route: str, intake: SampleSender, wanted: Callable[[SampleRow], bool] | None = None
        ) -> Sending:
            return Sending(
                self.buffer,
                intake,
                began,
                route=route,
                share=share,
                interval_s=lambda: plan.shortest_s,
                wanted=wanted,
            )

        if not url:
            return (sending("over servers", linked),)
        # Most sites write through their servers; this saves memory on their nodes.
        from lattice.adapters.metricstore.onlywrite import OnlyWrite  # noqa: PLC0415

        choice = WriteRoute(self.job_settings.stamps, began, self.time.now)
        straight = DirectIntake(self._node, self.job_settings.stamps, OnlyWrite(url), linked)
        return (
            sending("over servers", linked, choice.over_servers),
            sending("straight", straight, choice.straight),
        )

    def _settings_changed(self) -> None:
        self.sampling.nudge()
        self.snapshots.take_modes(self.time.now())

    def _judge_by(self, alerts: AlertsSection) -> None:
        self.snapshots.reload(judge_factory(alerts.thresholds))

    @property
    def reported(self) -> SnapshotEvents | None:
        """Where events of jobs are kept; None if nothing is measured."""
        return SnapshotEvents(self.snapshots, self.time) if self._enabled else None

    def close(self) -> None:
        """Close the threads of the probes and the connection to the helper."""
        self._registry.close()
        self.counters.close()

    def metrics_page(self) -> str:
        """For a scraper on this node."""
        snapshots = self._scraped(self.snapshots.newest())
        return page(self._node, snapshots, self._figures(), self.time.now())

    def _figures(self) -> Iterator[ExposedFigure]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, reading_s = used.ru_utime + used.ru_stime, self.sampling.reading_s_total
        counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
        stored = sum(each.stored_total for each in self.sendings)
        refused = sum(each.refused_total for each in self.sendings)
        for name, kind, text, value in (
            (
                "samples_lost_total",
                counter,
                "Samples dropped unsent because the buffer was full.",
                self.buffer.lost_total,
            ),
            ("samples_stored_total", counter, "Samples that were sent and stored.", stored),
            ("samples_refused_total", counter, "Samples that were sent and refused.", refused),
            ("samples_waiting", gauge, "Samples not sent yet.", self.buffer.samples),
            ("buffer_bytes", gauge, "Memory that these samples take.", self.buffer.size_bytes),
            (
                "readings_total",
                counter,
                "Times that all probes were read.",
                self.sampling.readings_total,
            ),
            (
                "reading_seconds_total",
                counter,
                "Time these readings took, waiting included.",
                reading_s,
            ),
            ("cpu_seconds_total", counter, "Processor time of the agent.", cpu_s),
        ):
            yield ExposedFigure(f"lattice_agent_{name}", kind, text, float(value))
        yield from self._process()


def _registry(
    settings: AgentSettings, cards: CardProbe, counters: HelperCounterLine, clock: Clock
) -> Registry:
    """The probe of the cards also serves the node's health, so it is made before the others."""
    site = ProbeSite(
        clock=clock,
        helper=HelperReadings(counters, clock),
        uuids_of=cards.uuids_of,
        dcgm_url=settings.config.telemetry.dcgm_url,
    )
    probes = known_probes(site)
    apart = [cards, *(each for each in probes if each.own_thread)]
    return Registry(apart, clock, together=[each for each in probes if not each.own_thread])


def _slices(settings: AgentSettings, health: GpuHealthWatch, clock: Clock) -> SliceParts:
    config = settings.config
    return SliceParts(config.slices, config.state_dir / "slices", health.served_cards, clock)


@dataclass(frozen=True, slots=True)
class SnapshotEvents:
    """Keeps what jobs report beside their snapshots."""

    snapshots: SnapshotStore
    time: SteadyTime

    def now(self) -> float:
        return self.time.now()

    def report(self, identity: JobIdentity, event: RunEvent) -> bool:
        return self.snapshots.report(identity, event)


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


def _share_of(node: str) -> float:
    """A fixed value for each node, from 0 to 1, the same after every restart."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:4]) / 2**32
