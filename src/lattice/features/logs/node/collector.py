"""Follows the output files of all jobs on the node.

Each job has a task here. It requests a grant from the server and the files from the helper. It
repeats that a few times, as steps and processes appear, and ends when everything is stored. Some
jobs end before the agent sees them. Their output is read from the file that Slurm names and from
the files noted during the run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from lattice.base.clock import Clock
from lattice.base.errors import (
    DataUnavailable,
    LatticeError,
    NotFound,
    PermissionRefused,
    UsageError,
)
from lattice.base.impatience import PATIENCE_S
from lattice.domain.logs import LogKind
from lattice.domain.nodejobs import (
    CLOCK_SLACK_S,
    JobEvent,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    StepId,
)
from lattice.domain.outputs import OutputOpener
from lattice.features.logs.node.capture import JobCapture
from lattice.features.logs.node.compressor import FrameCompressor
from lattice.features.logs.node.file_journal import LOOKS_S, Noting
from lattice.features.logs.node.filenames import FileNames
from lattice.features.logs.node.followed import FollowedFile, JobsHere, heads_in
from lattice.features.logs.node.intake import Intake, PastJob
from lattice.features.logs.node.missed import MissedJobs, UnreadJobs
from lattice.features.logs.node.opener import Opening, report_trouble
from lattice.features.logs.node.quota import NO_QUOTA, JobQuota
from lattice.features.logs.node.spool import StreamSpool
from lattice.features.logs.node.writers import LogWriter, WriterCheck

_log = logging.getLogger(__name__)

_PATIENT_S = 3.0
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)
_FINAL = (NotFound, PermissionRefused, DataUnavailable, UsageError)
"""Errors that a retry would not change."""
_NOT_FOUND_TRIES = 20
_STORED_CHECK_S = 1.0
_MOST_FINISHED = 1000
_EARLIER_S = 60.0
"""If Slurm has no such job at its start time, past jobs since this much earlier are requested."""


class Collecting:
    """Owns the files that are followed on this node."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        node: str,
        folder: Path,
        intake: Intake,
        opener: OutputOpener,
        jobs: JobsHere,
        read_process: WriterCheck,
        clock: Clock,
        *,
        stamps: Clock,
        room: Callable[[], bool],
        on_closed: Callable[[], None],
        quota_bytes: int = NO_QUOTA,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`stamps` gives the time of lines; `clock` is the node's own.

        `on_closed` is called from any thread when a chunk waits. `patience_s`: how long one process
        may block its reader.
        """
        self._stamps = stamps
        self._quota_bytes = quota_bytes
        self._folder = folder
        self._intake = intake
        self._opener = opener
        self._opening = Opening(node, intake, opener, read_process, clock, stamps, patience_s)
        self._jobs = jobs
        self._clock = clock
        self._room = room
        self._on_closed = on_closed
        self._compressor = FrameCompressor()
        self.unread = UnreadJobs(folder / "unread.json", clock.now().timestamp())
        """Jobs without a stream, and why."""
        self._missed = MissedJobs(
            folder,
            intake,
            jobs.missed,
            clock,
            self.unread,
            take=self._take_up_missed,
            unfinished_since=self._unfinished_since,
        )
        self._followed: dict[JobIdentity, FollowedFile] = {}
        self._finished: deque[JobIdentity] = deque(maxlen=_MOST_FINISHED)
        """The newest jobs that were stored to the end."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken_up = asyncio.Event()
        """Set once `run` follows the files that an earlier agent left."""

    @property
    def followed(self) -> tuple[FollowedFile, ...]:
        """Every job with output that is not yet stored to the end."""
        return tuple(self._followed.values())

    def stored(self, spool: StreamSpool) -> None:
        """A chunk of this stream has been stored."""
        for each in self.followed:
            if any(stream.spool is spool for stream in each.capture.streams):
                each.changed.set()

    def spools(self) -> Iterator[StreamSpool]:
        """Every stream that may have chunks to send."""
        for each in self.followed:
            for stream in each.capture.streams:
                yield stream.spool

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._jobs.ready()
            self._take_up_left(set(self._jobs.jobs))
            self._taken_up.set()
            async for event in self._jobs.changes():
                self._hear(event)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for each in self.followed:
                await asyncio.to_thread(each.capture.stop)
            self._compressor.close()

    def _hear(self, event: JobEvent) -> None:
        identity = event.job.identity
        known = self._followed.get(identity)
        if known is None:
            known = self._begin(identity, event.job)
        known.job = event.job
        if isinstance(event, NodeJobEnded):
            known.ended = True
            known.ended_at = self._clock.now().timestamp()
        known.changed.set()
        known.noting.changed()

    def _begin(self, identity: JobIdentity, job: NodeJob | None) -> FollowedFile:
        name = f"{identity.job_id}-{int(identity.started * 1000)}"
        quota = JobQuota(self._quota_bytes)
        loop = asyncio.get_running_loop()

        def on_quiet() -> None:
            loop.call_soon_threadsafe(followed.ask_anew)

        capture = JobCapture(
            name,
            self._stamps,
            self._room,
            self._on_closed,
            quota,
            on_quiet,
            self._compressor.start,
        )
        folder = self._folder / name
        noting = Noting(self._opener, identity.job_id, lambda anew: self._writers(followed, anew))
        followed = FollowedFile(
            identity, folder, capture, job, FileNames(folder, self._clock), noting
        )
        self._followed[identity] = followed
        capture.start()
        task = asyncio.create_task(self._follow(followed), name=f"logs {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return followed

    def _take_up_left(self, present: set[JobIdentity]) -> None:
        """Follow jobs that ended while no agent ran and have unsent output on disk."""
        here = {(each.job_id, int(each.started * 1000)) for each in present}
        for folder in sorted(self._folder.glob("*-*")):
            heads = heads_in(folder)
            if not heads:
                continue
            job_id, started = heads[0].job_id, heads[0].started
            if (job_id, int(started * 1000)) in here:
                continue
            identity = JobIdentity("", job_id, 0, started)
            followed = self._begin(identity, None)
            followed.ended = True

    async def take_up_missed(self) -> None:
        """Find jobs that ran while no agent watched, after each absence, until cancelled.

        Runs beside `run`, which owns what it finds.
        """
        await self._taken_up.wait()
        await self._missed.run()

    def _take_up_missed(self, past: Sequence[PastJob]) -> None:
        """Follow jobs that started and ended while this agent did not watch."""
        runs = Counter(each.job_id for each in past)
        for each in past:
            if self._follows(each, only=runs[each.job_id] == 1):
                continue
            followed = self._begin(JobIdentity("", each.job_id, 0, each.started), None)
            followed.ended = True
            followed.changed.set()

    def _follows(self, past: PastJob, *, only: bool) -> bool:
        """True if the job is followed, or was followed to its end.

        A job that was noticed after its end has a later start here. It counts as this one if `only`
        one fits, as on the server.
        """
        begun = past.started - CLOCK_SLACK_S
        ended = max(past.ended, past.started) + CLOCK_SLACK_S
        return any(
            identity.job_id == past.job_id
            and (begun <= identity.started <= ended or (only and _noticed_late(identity, begun)))
            for identity in (*self._followed, *self._finished)
        )

    def _unfinished_since(self) -> float | None:
        """When the oldest job without data on this disk ended; None if there is none."""
        moments = [each.ended_at or each.identity.started for each in self.followed if each.unread]
        return min(moments, default=None)

    async def _follow(self, followed: FollowedFile) -> None:
        noting = asyncio.create_task(followed.noting.run(), name="logs noting")
        try:
            checked: frozenset[StepId] | None = None
            before = bool(await asyncio.to_thread(followed.left))
            while not followed.ended:
                followed.changed.clear()
                if followed.steps == checked:
                    await self._until_answered(followed, self._opening.open_writers)
                else:
                    checked = followed.steps
                    await self._poll_writers(followed)
                if before and not followed.ended:
                    # Files of steps that ended before this agent started.
                    before = False
                    await self._until_answered(followed, self._opening.open_noted)
                await followed.changed.wait()
            await self._end(followed)
        except Exception:  # noqa: BLE001 - one job's defect is not the agent's end
            _log.exception("job %d: its output is not followed", followed.identity.job_id)
            followed.trouble = "a defect of the agent stopped it; its log has the details"
        finally:
            noting.cancel()
            followed.names.close()

    async def _poll_writers(self, followed: FollowedFile) -> None:
        """Check for writers several times, until the steps change."""
        steps = followed.steps
        for pause_s in LOOKS_S:
            await followed.pause(pause_s)
            followed.job = await self._jobs.reread(followed.identity) or followed.job
            if followed.ended or followed.steps != steps:
                followed.changed.set()
                return
            await self._until_answered(followed, self._opening.open_writers)
            if pause_s >= _PATIENT_S:
                await self._until_answered(followed, self._opening.settle_names)

    async def _until_answered(
        self, followed: FollowedFile, ask: Callable[[FollowedFile], Awaitable[None]]
    ) -> None:
        for number in itertools.count():
            try:
                await ask(followed)
            except _FINAL as error:
                report_trouble(followed, error.message)
                # Slurm may not have reported yet that the job is here.
                followed.unknown = isinstance(error, NotFound)
                if not followed.unknown or number >= _NOT_FOUND_TRIES:
                    followed.refused = followed.refused or error.message
                    return
                await asyncio.sleep(_RETRY_S[0])
            except (LatticeError, OSError) as error:
                # While this node's disk is full, the job's file is the buffer.
                report_trouble(followed, _reason(error))
                await asyncio.sleep(_RETRY_S[min(number, len(_RETRY_S) - 1)])
            else:
                followed.trouble = ""
                return

    async def _writers(self, followed: FollowedFile, anew: bool) -> tuple[LogWriter, ...]:
        if anew:
            followed.job = await self._jobs.reread(followed.identity) or followed.job
        return await self._opening.writers(followed)

    async def _end(self, followed: FollowedFile) -> None:
        """The job's processes are gone: read the rest, and wait until it is stored."""
        await self._until_answered(followed, self._opening.settle_names)
        left = await asyncio.to_thread(followed.left)
        missed = bool(left) or followed.job is None or followed.noting.unopened
        sources = {each.spool.head.source.step for each in followed.capture.streams}
        followed.refused = ""
        if not sources or (missed and "batch" not in sources):
            for kind in LogKind:
                await self._until_answered(followed, partial(self._opening.open_named, kind))
        if missed:
            await self._until_answered(followed, self._opening.open_noted)
            await self._until_answered(followed, self._opening.settle_names)
        await self._until_answered(followed, self._opening.open_left)
        followed.capture.finish()
        streams = followed.capture.streams
        while not (followed.capture.over and all(each.spool.stored.last for each in streams)):
            followed.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STORED_CHECK_S):
                    await followed.changed.wait()
        await asyncio.to_thread(self._remove, followed)
        self._followed.pop(followed.identity, None)
        if streams or followed.stored:
            self._finished.append(followed.identity)
            return
        identity = followed.identity
        self.unread.add_job(identity.job_id, identity.started, followed.refused)
        if followed.unknown and followed.job is not None:
            self._missed.ask_since(identity.started - _EARLIER_S)

    def _remove(self, followed: FollowedFile) -> None:
        for stream in followed.capture.streams:
            stream.spool.remove()
        with suppress(OSError):
            followed.folder.rmdir()


def _noticed_late(identity: JobIdentity, begun: float) -> bool:
    return bool(identity.boot_id) and not identity.inode and identity.started >= begun


def _reason(error: LatticeError | OSError) -> str:
    if isinstance(error, LatticeError):
        return error.message
    return f"the agent can't write to its disk: {error.strerror or error}"
