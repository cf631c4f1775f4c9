"""Answers servers that request a job's values, once or until the job ends; or its events.

A slow server gets only the newest snapshot; one that is too many alerts behind is cut off. A server
that wants only alerts gets snapshots without readings, and few of them. Times are by the servers'
clock. The answer for a job that this node does not have is empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lattice.base.errors import NotFound
from lattice.domain.alert import Judge
from lattice.domain.measured import JobSnapshot
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.pipe import LARGEST_MESSAGE_BYTES
from lattice.domain.stream import Session
from lattice.features.telemetry.convert.run_events import events_message
from lattice.features.telemetry.convert.snapshot_rows import SnapshotRows
from lattice.features.telemetry.convert.snapshots import (
    ALERTS_BEAT_S,
    BadSnapshot,
    SnapshotRequest,
    Want,
    alert_message,
    node_snapshot_message,
    opening_of,
    snapshot_message,
)
from lattice.features.telemetry.node.sampler import Sampling
from lattice.features.telemetry.node.snapshots import MOST_ALERTS, Follower, JobRun, SnapshotStore
from lattice.wire.v1 import telemetry_pb2 as pb

_log = logging.getLogger(__name__)

_SECOND_READING_S = 0.75
_TOO_MUCH = "the job has more series on this node than fit in one message"


class MetricFeed:
    """Serves streams of the kind `metrics`."""

    def __init__(
        self,
        store: SnapshotStore,
        sampling: Sampling,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._sampling = sampling
        self._sleep = sleep

    async def __call__(self, session: Session, opening: bytes) -> None:
        try:
            asked = opening_of(opening)
        except BadSnapshot as fault:
            raise NotFound(str(fault)) from None
        if asked.want is Want.ONCE:
            await session.send(await self.snapshot(asked.job_id, asked.started), last=True)
        elif asked.want is Want.EVENTS:
            # The server knows which node it asks.
            found = events_message(self._store.events("", asked.job_id, asked.started))
            await session.send(found.SerializeToString(), last=True)
        else:
            await self._until_left(session, asked)

    async def snapshot(self, job_id: int, started: float) -> bytes:
        """Return the answer to a single look; empty if the job is not on this node."""
        return (await self._answer(job_id, started)).SerializeToString()

    async def _answer(self, job_id: int, started: float) -> pb.LookTell:
        run = self._store.find(job_id, started)
        if run is None:
            return pb.LookTell()
        now = await self._sampling.snapshot(run.identity)
        if now is None:
            return pb.LookTell(over=True)
        before = run.before_of(now)
        if before is None:
            await self._sleep(_SECOND_READING_S)
            second = await self._sampling.snapshot(run.identity, anew=True)
            before, now = (now, second) if second is not None else (None, now)
        return self._message(run, before, now)

    def _message(self, run: JobRun, before: JobSnapshot | None, now: JobSnapshot) -> pb.LookTell:
        return _full_message(self._store.began(run.identity), run.judge, before, now)

    async def _until_left(self, session: Session, asked: SnapshotRequest) -> None:
        """Send until the job ends or the server closes its side."""
        sending = asyncio.create_task(self._follow(session, asked), name="metrics feed")
        receiving = asyncio.create_task(_drain(session), name="metrics feed end")
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in (sending, receiving):
                if task.done():
                    task.result()
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _follow(self, session: Session, asked: SnapshotRequest) -> None:
        while (run := self._store.find(asked.job_id, asked.started)) is None:
            await self._store.arrival()
        follower = Follower(ALERTS_BEAT_S if asked.alerts_only else 0.0)
        follower.pair = (run.before, run.now) if run.now is not None else None
        snapshots = _SentSnapshots(self._store.began(run.identity), asked)
        run.followers.add(follower)
        try:
            while True:
                pair, alerts = follower.take()
                # Alerts first, then the snapshot, which has the state after them.
                for alert in alerts:
                    message = pb.LookTell(alert=alert_message(alert))
                    await session.send(message.SerializeToString())
                if pair is not None:
                    message = snapshots.message(run.judge, *pair)
                    await session.send(message.SerializeToString())
                if follower.lost and not follower.alerts:
                    count = MOST_ALERTS + follower.lost
                    _log.warning("job %d: a server is %d alerts behind", asked.job_id, count)
                    # Not the end of the job: the server asks again, and gets the current state.
                    await session.send(b"", last=True)
                    return
                if run.ended and not follower.changed.is_set():
                    break
                await follower.changed.wait()
        finally:
            run.followers.discard(follower)
        await session.send(pb.LookTell(over=True).SerializeToString(), last=True)


class _SentSnapshots:
    """The snapshots of one stream, in the form that its server asked for."""

    def __init__(self, began: float, asked: SnapshotRequest) -> None:
        self._began = began
        self._asked = asked
        self._rows = SnapshotRows()
        self._sent: JobSnapshot | None = None

    def message(self, judge: Judge, before: JobSnapshot | None, now: JobSnapshot) -> pb.LookTell:
        """Build the message of a snapshot, which must be sent."""
        if self._asked.alerts_only:
            alive = JobSnapshot(now.identity, now.time, now.resolution_s, ())
            return _full_message(self._began, judge, None, alive)
        sent, self._sent = self._sent, now
        # After one that was left out, or a step of the clock, the server lacks the one before.
        if self._asked.rows and sent is not None and before is sent:
            row = self._rows.message(now, judge.firing, judge.progress, judge.since)
            if row.ByteSize() <= LARGEST_MESSAGE_BYTES:
                return row
            self._rows = SnapshotRows()
        return _full_message(self._began, judge, before, now)


async def _drain(session: Session) -> None:
    while await session.receive() is not None:
        pass


def _full_message(
    began: float, judge: Judge, before: JobSnapshot | None, now: JobSnapshot
) -> pb.LookTell:
    message = node_snapshot_message(began, before, now, judge.firing, judge.progress, judge.since)
    return _fitting(pb.LookTell(sight=message), now)


def _fitting(message: pb.LookTell, now: JobSnapshot) -> pb.LookTell:
    """Reduce to one message: drop the counters for rates, then series, with a reason."""
    if message.ByteSize() <= LARGEST_MESSAGE_BYTES:
        return message
    snapshot = message.sight.now
    message.sight.ClearField("before")
    readings: tuple[MetricReading, ...] = now.readings
    while message.ByteSize() > LARGEST_MESSAGE_BYTES and readings:
        half = len(readings) // 2
        cut = {each.metric for each in now.readings[half:]}
        readings = readings[:half]
        left_out = tuple(Absence(metric, _TOO_MUCH) for metric in sorted(cut))
        shorter = JobSnapshot(now.identity, now.time, now.resolution_s, (*readings, *left_out))
        snapshot.CopyFrom(snapshot_message(snapshot.began, shorter))
    return message
