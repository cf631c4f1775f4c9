"""Samples the node's jobs, at times that all nodes share.

One reading serves every job that is due. A reading takes as long as its slowest probe. Each sample
has its own time, so a late one is visible.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import MetricReading, Sample
from lattice.domain.nodejobs import (
    JobAppeared,
    JobChanged,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
)
from lattice.features.telemetry.node.plan import Plan, Turn
from lattice.features.telemetry.node.steadytime import LEAP_S, SteadyTime

Reads: TypeAlias = Callable[
    [Sequence[NodeJob]], Awaitable[Mapping[JobIdentity, tuple[MetricReading, ...]]]
]
"""Returns all that the probes can read of these jobs now."""

_log = logging.getLogger(__name__)

FRESH_S = 1.5
_LONGEST_WAIT_S = 5.0
"""A step of the clock is noticed within this time."""
_SAME_S = 0.001
_OUT_OF_TURN_S = 1.0
_ALIVE_METRIC = "cpu_seconds_total"
"""A job that has ended is not readable without it."""


class SampledJobs(Protocol):
    """The jobs on this node."""

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]: ...

    async def ready(self) -> None: ...

    def changes(self) -> AsyncIterator[JobEvent]: ...


class Hears(Protocol):
    """A listener for measurements."""

    def appeared(self, identity: JobIdentity) -> None: ...

    def measured(self, snapshot: JobSnapshot) -> None: ...

    def ended(self, identity: JobIdentity) -> None: ...


Wait: TypeAlias = Callable[[asyncio.Event, float], Awaitable[None]]
"""Waits for the event, or for this many seconds."""


async def wait(event: asyncio.Event, seconds: float) -> None:
    """The default implementation of `Wait`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Sampling:
    """Reads jobs when they are due. Calls `hears` in order, in the event loop."""

    def __init__(
        self,
        jobs: SampledJobs,
        reads: Reads,
        time: SteadyTime,
        plan: Plan,
        hears: Sequence[Hears],
        *,
        wait: Wait = wait,
    ) -> None:
        self._jobs = jobs
        self._reads = reads
        self._time = time
        self._plan = plan
        self._hears = tuple(hears)
        self._wait = wait
        self._again = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._newest: dict[JobIdentity, JobSnapshot] = {}
        self._published: dict[JobIdentity, float] = {}
        """When each was last published: a snapshot on request is only for its caller."""
        self._leaps = time.leaps
        self.readings_total = 0
        self.reading_s_total = 0.0
        """Total duration: mostly waiting for the slowest probe."""

    def nudge(self) -> None:
        """Recompute the plan after a change of modes or jobs."""
        self._again.set()

    async def run(self) -> None:
        """Read until cancelled."""
        await self._jobs.ready()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="telemetry jobs")
            group.create_task(self._keep_reading(), name="telemetry reading")

    async def snapshot(self, identity: JobIdentity, *, anew: bool = False) -> JobSnapshot | None:
        """Return the newest snapshot if it is fresh, else a new one; None if the job is gone."""
        if not anew and (fresh := self._fresh(identity)) is not None:
            return fresh
        asked = self._now()
        async with self._one_at_a_time:
            newest = self._newest.get(identity)
            if newest is not None and newest.time >= asked - _SAME_S:
                return newest  # read by another caller meanwhile
            job = self._jobs.jobs.get(identity)
            moment = round(self._time.now(), 3)
            readings = await self._read((job,)) if job is not None else {}
        if identity not in readings:
            return None
        interval_s = self._plan.interval_s(identity)
        snapshot = JobSnapshot(identity, moment, interval_s, readings[identity])
        self._newest[identity] = snapshot
        return snapshot

    def _fresh(self, identity: JobIdentity) -> JobSnapshot | None:
        now, newest = self._now(), self._newest.get(identity)
        age_s = now - newest.time if newest is not None else math.inf
        return newest if 0 <= age_s <= FRESH_S else None

    async def _keep_reading(self) -> None:
        while True:
            self._again.clear()
            now = self._now()
            due_in_s = self._plan.next(now) - now
            if due_in_s > 0:
                await self._wait(self._again, min(due_in_s, _LONGEST_WAIT_S))
                continue
            await self._take_turns(now)

    def _now(self) -> float:
        now = self._time.now()
        if self._time.leaps != self._leaps:
            # Earlier readings have times on another scale.
            self._leaps = self._time.leaps
            self._plan.leapt()
            self._newest.clear()
            self._published.clear()
        return now

    async def _take_turns(self, now: float) -> None:
        turns = self._plan.due(now)
        here = self._jobs.jobs
        async with self._one_at_a_time:
            readings = await self._read([here[each] for each in turns if each in here])
        for identity, found in readings.items():
            self._publish(identity, found, turns[identity])

    def _publish(
        self, identity: JobIdentity, readings: tuple[MetricReading, ...], turn: Turn
    ) -> None:
        snapshot = JobSnapshot(identity, turn.moment, turn.interval_s, readings)
        self._newest[identity] = snapshot
        self._published[identity] = turn.moment
        for each in self._hears:
            each.measured(snapshot)

    async def _read(
        self, jobs: Sequence[NodeJob], *, gone: bool = False
    ) -> dict[JobIdentity, tuple[MetricReading, ...]]:
        """Read jobs, convert times to the servers', and drop jobs that have changed.

        Returns nothing if the node's clock was set meanwhile: the times are unknown then.
        """
        if not jobs:
            return {}
        self._time.now()
        begun_s, ahead_s = self._time.monotonic(), self._time.wall_ahead_s
        try:
            found = await self._reads(jobs)
        except Exception:  # noqa: BLE001 - one reading's defect is not the end of all
            _log.exception("a reading has failed")
            return {}
        self._time.now()
        self.readings_total += 1
        self.reading_s_total += self._time.monotonic() - begun_s
        if abs(self._time.wall_ahead_s - ahead_s) > LEAP_S:
            return {}
        here = self._jobs.jobs
        return {
            identity: _in_servers_time(readings, ahead_s)
            for identity, readings in found.items()
            if gone or identity in here
        }

    async def _listen(self) -> None:
        async for event in self._jobs.changes():
            identity = event.job.identity
            if isinstance(event, JobAppeared) or identity not in self._plan.jobs:
                self._plan.appeared(identity, self._time.now())
                for each in self._hears:
                    each.appeared(identity)
            if isinstance(event, NodeJobEnded):
                await self._end(event.job)
            elif isinstance(event, JobChanged) and _step_ended(event):
                await self._last(event.job)
            self._again.set()

    async def _end(self, job: NodeJob) -> None:
        identity = job.identity
        # A requeued job has the same folders: their content is not this run's.
        if not any(each.job_id == job.id for each in self._jobs.jobs):
            await self._last(job, gone=True)
        self._plan.ended(identity)
        self._newest.pop(identity, None)
        self._published.pop(identity, None)
        for each in self._hears:
            each.ended(identity)

    async def _last(self, job: NodeJob, *, gone: bool = False) -> None:
        """Read out of turn: a step's totals are complete now and may soon be unreadable."""
        moment = round(self._now(), 3)
        if moment - self._published.get(job.identity, 0.0) < _OUT_OF_TURN_S:
            return
        async with self._one_at_a_time:
            found = (await self._read((job,), gone=gone)).get(job.identity, ())
        if any(isinstance(each, Sample) and each.metric == _ALIVE_METRIC for each in found):
            self._publish(job.identity, found, Turn(moment, self._plan.interval_s(job.identity)))


def _step_ended(event: JobChanged) -> bool:
    before = {each.id for each in event.before.steps if each.processes}
    return not before <= {each.id for each in event.job.steps if each.processes}


def _in_servers_time(
    readings: Iterable[MetricReading], ahead_s: float
) -> tuple[MetricReading, ...]:
    if abs(ahead_s) < _SAME_S:
        return tuple(readings)
    return tuple(
        replace(each, time=each.time - ahead_s) if isinstance(each, Sample) else each
        for each in readings
    )
