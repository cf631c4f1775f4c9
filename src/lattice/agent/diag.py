"""Builds the agent's part of diagnoses: facts about jobs' environment, and their stacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.probed import HelperProbes
from lattice.adapters.linux.nodejobs import NodeJobs
from lattice.agent.config import AgentSettings
from lattice.agent.telemetry import TelemetryParts
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.base.supervisor import Loop, OnFailure
from lattice.base.text import inert
from lattice.domain.jobfacts import FactAbsence, FactKind, GpuFact, MountFact, TaskFact
from lattice.domain.nodejobs import JobIdentity
from lattice.domain.probed import MOST_PROCESSES, TaskLook
from lattice.domain.stream import Serve, StreamKind
from lattice.features.diag.node.facts import FactFeed, FactSources, FoundFacts, NetworkFound
from lattice.features.diag.node.lives import Baselines, JobRuns
from lattice.features.diag.node.stacks import StackFeed
from lattice.features.link.node.servertime import ServerTime
from lattice.probes.facts.gpus import Widths, gpu_facts
from lattice.probes.facts.links import LinkProbe, NetworkLook, since
from lattice.probes.facts.mounts import mount_facts

_PROC, _SYS = Path("/proc"), Path("/sys")
_PATIENCE_S = 2.0


class DiagParts:
    """Answers servers' requests for facts and stacks of a job."""

    def __init__(
        self,
        told: AgentSettings,
        jobs: NodeJobs,
        clock: Clock,
        servers: ServerTime,
        helper: HelperChannel,
        telemetry: TelemetryParts,
    ) -> None:
        self._servers = servers
        self._telemetry = telemetry
        self._probes = HelperProbes(helper)
        self._widths = Widths(_PROC, _SYS)
        probe = LinkProbe(_PROC, _SYS)
        self._network = NetworkLooks(lambda: probe.look(clock.monotonic()))
        self._first = Baselines(jobs, self._network.or_none)
        lives = JobRuns(jobs, servers.told)
        sources = FactSources(
            network=self._network_of,
            mounts=self._mounts,
            tasks=self._tasks,
            gpus=self._gpus,
            look=telemetry.feed.look,
            clock_ahead_s=lambda: servers.ahead_s,
            last_output=telemetry.output,
            now=self._now,
        )
        self._facts = FactFeed(told.node, lives, sources)
        self._stacks = StackFeed(told.node, lives, self._probes.stacks)

    @property
    def serving(self) -> dict[StreamKind, Serve]:
        """The streams that it serves."""
        return {StreamKind.FACTS: self._facts, StreamKind.STACKS: self._stacks}

    def loops(self) -> tuple[Loop, ...]:
        """Its background loops."""
        return (Loop("diag", self._first.run, OnFailure.RESTART),)

    def _now(self) -> float:
        return self._servers.now().timestamp()

    async def _network_of(self, identity: JobIdentity) -> NetworkFound:
        now, before = await self._network(), self._first.of(identity)
        told = now if before is None else since(before, now)
        return NetworkFound(told.links, told.transport, told.absences())

    async def _mounts(self, request: bytes) -> FoundFacts[MountFact]:
        look = await self._probes.mounts(request)
        # These are small kernel files; none of them waits for a file share.
        return FoundFacts(*mount_facts(look))

    async def _tasks(self, request: bytes) -> FoundFacts[TaskFact]:
        looks = await self._probes.tasks(request)
        facts = tuple(task_fact(each, self._now()) for each in looks)
        if not facts:
            reason = "no process of the job's ranks runs here"
            return FoundFacts((), (FactAbsence(FactKind.TASKS, reason),))
        if len(facts) >= MOST_PROCESSES:
            reason = f"the job has more than {MOST_PROCESSES} here"
            return FoundFacts(facts, (FactAbsence(FactKind.TASKS, reason, "others"),))
        return FoundFacts(facts)

    async def _gpus(self, identity: JobIdentity) -> FoundFacts[GpuFact]:
        watch = self._telemetry.gpu_health
        uuids = self._telemetry.gpus_of(identity.job_id)
        return FoundFacts(*gpu_facts(uuids, watch.last, watch.current(), self._widths))


class NetworkLooks:
    """Reads the network, one reading at a time, in a thread: a driver can block its caller."""

    def __init__(self, look: Callable[[], NetworkLook], *, patience_s: float = _PATIENCE_S) -> None:
        """`look` blocks."""
        self._look = look
        self._patience_s = patience_s
        self._under_way: asyncio.Future[NetworkLook] | None = None

    async def __call__(self) -> NetworkLook:
        """The next reading. Raises `Unavailable`, or the exception of `look`."""
        if self._under_way is None:
            self._under_way = self._begin()
        looking = self._under_way
        done, _ = await asyncio.wait((looking,), timeout=self._patience_s)
        if not done:
            raise Unavailable("a network driver does not answer")
        if self._under_way is looking:
            self._under_way = None
        return looking.result()

    async def or_none(self) -> NetworkLook | None:
        """None if it failed."""
        try:
            return await self()
        except Exception:  # noqa: BLE001 - then there is no reading
            return None

    def _begin(self) -> asyncio.Future[NetworkLook]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[NetworkLook] = loop.create_future()

        def tell(look: NetworkLook | Exception) -> None:
            if future.done():
                return
            if isinstance(look, Exception):
                future.set_exception(look)
            else:
                future.set_result(look)

        def work() -> None:
            told: NetworkLook | Exception
            try:
                told = self._look()
            except Exception as error:  # noqa: BLE001 - it is passed to the caller
                told = error
            try:
                loop.call_soon_threadsafe(tell, told)
            except RuntimeError:
                return  # the agent has ended meanwhile

        threading.Thread(target=work, name="network look", daemon=True).start()
        return future


def task_fact(look: TaskLook, now: float) -> TaskFact:
    """The helper's values, with times by the servers' clock."""
    return TaskFact(
        rank=look.rank,
        pid=look.pid,
        state=inert(look.state)[:1],
        waits_in=inert(look.waits_in),
        cpu_seconds=look.cpu_seconds,
        command=inert(look.command),
        started=None if look.age_s is None else now - look.age_s,
        step=inert(look.step),
        python_unbuffered=look.python_unbuffered,
        output_piped=look.output_piped,
    )
