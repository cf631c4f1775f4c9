"""A node in memory for tests: its clock, its jobs, its probes, and whoever hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

from lattice.domain.alert import Alert, Progress
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import MetricReading, Sample
from lattice.domain.nodejobs import (
    JobAppeared,
    JobChanged,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    NodeStep,
    ProcessId,
    StartSign,
    StepId,
)
from lattice.features.telemetry.node.plan import Plan
from lattice.features.telemetry.node.sampler import Sampling
from lattice.features.telemetry.node.snapshots import SnapshotStore
from lattice.features.telemetry.node.steadytime import SteadyTime
from tests.fakes.manual_clock import ManualClock

T0 = 1_794_702_390.0
"""A multiple of 30."""


def job_of(job_id: int = 7, *, inode: int = 1, steps: tuple[int, ...] = (0,)) -> NodeJob:
    identity = JobIdentity("b", job_id, inode, T0 - 5 + inode)
    parts = tuple(
        NodeStep(StepId(str(each)), processes=(ProcessId(1000 + each, 1),)) for each in steps
    )
    return NodeJob(identity=identity, started_by=StartSign.FOLDER, steps=parts)


class Jobs:
    """The port `JobsHere`."""

    def __init__(self, *jobs: NodeJob) -> None:
        self.jobs: Mapping[JobIdentity, NodeJob] = {each.identity: each for each in jobs}
        self._events: asyncio.Queue[JobEvent] = asyncio.Queue()
        for each in jobs:
            self._events.put_nowait(JobAppeared(each))

    async def ready(self) -> None: ...

    async def changes(self) -> AsyncIterator[JobEvent]:
        while True:
            yield await self._events.get()

    def put(self, job: NodeJob) -> None:
        before = self.jobs.get(job.identity)
        self.jobs = {**self.jobs, job.identity: job}
        self._events.put_nowait(JobChanged(job, before) if before else JobAppeared(job))

    def end(self, job: NodeJob) -> None:
        self.jobs = {each: known for each, known in self.jobs.items() if each != job.identity}
        self._events.put_nowait(NodeJobEnded(job))


class Probes:
    """`Reads`: a processor second passes each second; `during` happens while it is read."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked: list[tuple[int, ...]] = []
        self.during: Callable[[], None] = lambda: None
        self.gone: set[int] = set()

    async def __call__(
        self, jobs: Sequence[NodeJob]
    ) -> Mapping[JobIdentity, tuple[MetricReading, ...]]:
        self.asked.append(tuple(job.id for job in jobs))
        time = self._clock.now().timestamp()
        self.during()
        await asyncio.sleep(0)
        used = self._clock.monotonic()
        return {
            job.identity: ()
            if job.id in self.gone
            else (
                Sample("cpu_seconds_total", used, time),
                Sample("memory_used_bytes", 300e6, time),
                Sample("threads", 4.0, time),
            )
            for job in jobs
        }


class Heard:
    """The port `Hears`."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.snapshots: list[JobSnapshot] = []

    def appeared(self, identity: JobIdentity) -> None:
        self.there.append(identity.job_id)

    def measured(self, snapshot: JobSnapshot) -> None:
        self.snapshots.append(snapshot)

    def ended(self, identity: JobIdentity) -> None:
        self.there.remove(identity.job_id)

    def moments(self, job_id: int = 7) -> list[float]:
        return [each.time - T0 for each in self.snapshots if each.identity.job_id == job_id]


class QuietJudge:
    """The port `Judge`; what is put in `next` is told at the next snapshot."""

    def __init__(self) -> None:
        self.firing: tuple[Alert, ...] = ()
        self.progress = Progress()
        self.since: float | None = None
        self.seen: list[tuple[float, float | None]] = []
        self.next: tuple[Alert, ...] = ()

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:
        self.seen.append((snapshot.time, output))
        self.since = self.seen[0][0]
        told, self.next = self.next, ()
        self.firing += told
        return told


class Node:
    """Sampling at work on a clock that is moved by hand."""

    def __init__(self, *jobs: NodeJob, ahead_s: float = 0.0, linked: bool = True) -> None:
        self.clock = ManualClock(datetime.fromtimestamp(T0 + ahead_s, UTC))
        self.ahead: float | None = ahead_s if linked else None
        self.time = SteadyTime(self.clock, lambda: self.ahead)
        self.intervals: dict[int, float] = {}
        self.jobs = Jobs(*jobs)
        self.probes = Probes(self.clock)
        self.heard = Heard()
        self.judges: list[QuietJudge] = []
        self.sights = SnapshotStore(
            self._judge, lambda _: T0, to_server_time=self._told, leaps=lambda: self.time.leaps
        )
        self.waits = 0
        self.sampling = Sampling(
            self.jobs,
            self.probes,
            self.time,
            Plan(lambda job_id: self.intervals.get(job_id, 30.0)),
            (self.sights, self.heard),
            wait=self._wait,
        )

    def _told(self, here_s: float) -> float:
        return here_s - (self.ahead or 0.0)

    def _judge(self) -> QuietJudge:
        self.judges.append(QuietJudge())
        return self.judges[-1]

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        assert seconds > 0, "no busy loop"
        self.waits += 1
        assert self.waits < 10_000
        until = self.clock.monotonic() + seconds
        while not event.is_set() and self.clock.monotonic() < until:
            await asyncio.sleep(0)

    async def pass_s(self, seconds: float, step_s: float = 0.25) -> None:
        """Let time pass, in steps in which everything has its turn."""
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            await settle()

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.sampling.run())
        await settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)
