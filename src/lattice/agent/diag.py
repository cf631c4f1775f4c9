"""Builds the agent's part of diagnoses: facts about jobs' environment, and their stacks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.probed import HelperProbes
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.agent.config import AgentSettings
from lattice.agent.slice_facts import SliceFacts
from lattice.agent.telemetry import TelemetryParts
from lattice.base.clock import Clock
from lattice.base.driver_reads import DriverReads
from lattice.base.supervisor import Loop, OnFailure
from lattice.base.text import inert
from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact, MountFact, TaskFact
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.probed import MOST_PROCESSES, TaskReport
from lattice.domain.stream import Serve, StreamKind
from lattice.features.diag.node.facts import (
    FactFeed,
    FactSources,
    FoundFacts,
    NetworkFound,
    PeersFound,
)
from lattice.features.diag.node.job_runs import Baselines, JobRuns
from lattice.features.diag.node.stacks import StackFeed
from lattice.features.link.node.servertime import ServerTime
from lattice.probes.facts.gpus import Widths, gpu_facts
from lattice.probes.facts.links import LinkProbe, NetworkReading, since
from lattice.probes.facts.mounts import mount_facts
from lattice.probes.facts.peers import own_addresses, peer_facts

_PROC, _SYS = Path("/proc"), Path("/sys")
_PATIENCE_S = 2.0
_SILENT = "a network driver does not answer"


class DiagParts:
    """Answers servers' requests for facts and stacks of a job."""

    def __init__(
        self,
        settings: AgentSettings,
        jobs: NodeJobs,
        clock: Clock,
        servers: ServerTime,
        helper: HelperChannel,
        telemetry: TelemetryParts,
    ) -> None:
        self._servers = servers
        self._telemetry = telemetry
        self._probes = HelperProbes(helper)
        self._slices = SliceFacts(telemetry.slice_reader, self._now)
        self._widths = Widths(_PROC, _SYS)
        probe = LinkProbe(_PROC, _SYS)
        self._network = DriverReads(
            lambda: probe.read(clock.monotonic()), "network", _PATIENCE_S, _SILENT
        )
        self._first = Baselines(jobs, self._network_or_none)
        lives = JobRuns(jobs, servers.to_server_time)
        sources = FactSources(
            network=self._network_of,
            mounts=self._mounts,
            tasks=self._tasks,
            gpus=self._gpus,
            peers=self._peers,
            snapshot=telemetry.feed.snapshot,
            clock_ahead_s=lambda: servers.ahead_s,
            last_output=telemetry.output,
            now=self._now,
        )
        self._facts = FactFeed(settings.node, lives, sources)
        self._stacks = StackFeed(settings.node, lives, self._probes.stacks)

    @property
    def serving(self) -> dict[StreamKind, Serve]:
        return {StreamKind.FACTS: self._facts, StreamKind.STACKS: self._stacks}

    def loops(self) -> tuple[Loop, ...]:
        return (Loop("diag", self._first.run, OnFailure.RESTART),)

    def _now(self) -> float:
        return self._servers.now().timestamp()

    async def _network_or_none(self) -> NetworkReading | None:
        try:
            return await self._network()
        except Exception:  # noqa: BLE001 - then there is no reading
            return None

    async def _network_of(self, identity: JobIdentity) -> NetworkFound:
        if (in_guest := self._slices.network(identity)) is not None:
            return in_guest
        now, before = await self._network(), self._first.of(identity)
        found = now if before is None else since(before, now)
        return NetworkFound(found.links, found.transport, found.absences())

    async def _mounts(self, request: bytes) -> FoundFacts[MountFact]:
        mounts = await self._probes.mounts(request)
        # These are small kernel files; none of them waits for a file share.
        return FoundFacts(*mount_facts(mounts))

    async def _tasks(self, request: bytes) -> FoundFacts[TaskFact]:
        tasks = await self._probes.tasks(request)
        facts = tuple(task_fact(each, self._now()) for each in tasks)
        if not facts:
            reason = "no process of the job's ranks runs here"
            return FoundFacts((), (FactAbsence(FactKind.TASKS, reason),))
        if len(facts) >= MOST_PROCESSES:
            reason = f"the job has more than {MOST_PROCESSES} here"
            return FoundFacts(facts, (FactAbsence(FactKind.TASKS, reason, "others"),))
        return FoundFacts(facts)

    async def _gpus(self, identity: JobIdentity) -> FoundFacts[GpuFact]:
        if (in_guest := self._slices.gpus(identity)) is not None:
            return in_guest
        watch = self._telemetry.gpu_health
        uuids = self._telemetry.gpus_of(identity.job_id)
        return FoundFacts(*gpu_facts(uuids, watch.last, watch.current(), self._widths))

    async def _peers(self, identity: JobIdentity) -> PeersFound:
        # The helper answers within its own timeout; nothing here waits for a driver.
        return await asyncio.to_thread(self._read_peers, identity)

    def _read_peers(self, identity: JobIdentity) -> PeersFound:
        peers, absences = peer_facts(self._telemetry.counters, identity)
        return PeersFound(peers, own_addresses(_PROC), absences)


def task_fact(task: TaskReport, now: float) -> TaskFact:
    """The helper's values, with times by the servers' clock."""
    return TaskFact(
        rank=task.rank,
        pid=task.pid,
        state=inert(task.state)[:1],
        waits_in=inert(task.waits_in),
        cpu_seconds=task.cpu_seconds,
        command=inert(task.command),
        started=None if task.age_s is None else now - task.age_s,
        step=inert(task.step),
        python_unbuffered=task.python_unbuffered,
        output_piped=task.output_piped,
    )
