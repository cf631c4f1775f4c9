"""Answers servers that request a job's values: once, or until the job ends.

A slow server gets only the newest snapshot. Times are by the servers' clock. The answer for a job
that this node does not have is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lattice.base.errors import NotFound
from lattice.domain.alert import Alert
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.stream import Session
from lattice.features.telemetry.convert.looks import (
    BadSnapshot,
    LookAsked,
    Want,
    alert_message,
    opening_of,
    sight_message,
    snapshot_message,
)
from lattice.features.telemetry.node.sampler import Sampling
from lattice.features.telemetry.node.snapshots import Follower, JobRun, SnapshotStore
from lattice.wire.v1 import telemetry_pb2 as pb

_SECOND_LOOK_S = 0.75
_TOO_MUCH = "the job has more series on this node than fit in one message"


class MetricFeed:
    """Serves streams of the kind `metrics`."""

    def __init__(
        self,
        sights: SnapshotStore,
        sampling: Sampling,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sights = sights
        self._sampling = sampling
        self._sleep = sleep

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = opening_of(opening)
        except BadSnapshot as fault:
            raise NotFound(str(fault)) from None
        if asked.want is Want.LOOK:
            await session.send(await self.look(asked.job_id, asked.started), last=True)
        else:
            await self._until_left(session, asked)

    async def look(self, job_id: int, started: float) -> bytes:
        """Return the answer to a single look; empty if the job is not on this node."""
        asked = LookAsked(job_id, Want.LOOK, started)
        return (await self._look(asked)).SerializeToString()

    async def _look(self, asked: LookAsked) -> pb.LookTell:
        life = self._sights.find(asked.job_id, asked.started)
        if life is None:
            return pb.LookTell()
        now = await self._sampling.look(life.identity)
        if now is None:
            return pb.LookTell(over=True)
        before = life.before_of(now)
        if before is None:
            await self._sleep(_SECOND_LOOK_S)
            second = await self._sampling.look(life.identity, anew=True)
            before, now = (now, second) if second is not None else (None, now)
        return self._sight(life, before, now)

    def _sight(self, life: JobRun, before: JobSnapshot | None, now: JobSnapshot) -> pb.LookTell:
        began, judge = self._sights.began(life.identity), life.judge
        sight = sight_message(began, before, now, judge.firing, judge.progress, judge.since)
        return _fitting(pb.LookTell(sight=sight), now)

    async def _until_left(self, session: Session, asked: LookAsked) -> None:
        """Send until the job ends or the server closes its side."""
        telling = asyncio.create_task(self._follow(session, asked), name="metrics feed")
        hearing = asyncio.create_task(_heard_out(session), name="metrics feed end")
        try:
            await asyncio.wait((telling, hearing), return_when=asyncio.FIRST_COMPLETED)
            for task in (telling, hearing):
                if task.done():
                    task.result()
        finally:
            telling.cancel()
            hearing.cancel()
            await asyncio.gather(telling, hearing, return_exceptions=True)

    async def _follow(self, session: Session, asked: LookAsked) -> None:
        while (life := self._sights.find(asked.job_id, asked.started)) is None:
            await self._sights.arrival()
        follower = Follower()
        follower.sight = (life.before, life.now) if life.now is not None else None
        life.followers.add(follower)
        try:
            while True:
                sight, alerts = follower.take()
                # Alerts first, then the snapshot, which has the state after them.
                for alert in alerts:
                    await session.send(_alert(alert))
                if sight is not None:
                    await session.send(self._sight(life, *sight).SerializeToString())
                if life.ended and not follower.changed.is_set():
                    break
                await follower.changed.wait()
        finally:
            life.followers.discard(follower)
        await session.send(pb.LookTell(over=True).SerializeToString(), last=True)


async def _heard_out(session: Session) -> None:
    while await session.receive() is not None:
        pass


def _alert(alert: Alert) -> bytes:
    return pb.LookTell(alert=alert_message(alert)).SerializeToString()


def _fitting(tell: pb.LookTell, now: JobSnapshot) -> pb.LookTell:
    """Reduce to one message: drop the counters for rates, then series, with a reason."""
    if tell.ByteSize() <= LARGEST_MESSAGE_BYTES:
        return tell
    snapshot = tell.sight.now
    tell.sight.ClearField("before")
    readings: tuple[MetricReading, ...] = now.readings
    while tell.ByteSize() > LARGEST_MESSAGE_BYTES and readings:
        half = len(readings) // 2
        cut = {each.metric for each in now.readings[half:]}
        readings = readings[:half]
        left_out = tuple(Absence(metric, _TOO_MUCH) for metric in sorted(cut))
        shorter = JobSnapshot(now.identity, now.time, now.resolution_s, (*readings, *left_out))
        snapshot.CopyFrom(snapshot_message(snapshot.began, shorter))
    return tell
