"""From jobs that come and go to files that are followed.

Each job on the node has a task here: it asks the server for a grant and the helper for the files,
looks again a few times as steps and processes appear, and ends when everything is stored. A job
that was over before anyone looked is read from the file that Slurm names.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lattice.base.clock import Clock
from lattice.base.errors import (
    DataUnavailable,
    LatticeError,
    NotFound,
    PermissionRefused,
    UsageError,
)
from lattice.domain.logs import LogKind, LogSource
from lattice.domain.nodejobs import JobEnded, JobEvent, JobIdentity, NodeJob
from lattice.domain.outputs import OpenedOutputs, OutputOpener
from lattice.features.logs.node.capture import JobCapture, Room, Stream
from lattice.features.logs.node.filenames import FileNames, NamedFile, StreamKey
from lattice.features.logs.node.intake import Admission, Intake
from lattice.features.logs.node.spool import Stored, StreamHead, StreamSpool, head_of
from lattice.features.logs.node.tail import FileTail, NoTail
from lattice.features.logs.node.writers import Look, Writer, writers_of

_log = logging.getLogger(__name__)

_LOOKS_S = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
"""After a change of the job: processes set up their files some time after they appear."""
_PATIENT_S = 3.0
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)
_FINAL = (NotFound, PermissionRefused, DataUnavailable, UsageError)
"""What asking again would not change."""
_NOT_FOUND_TRIES = 20
_LOOK_AGAIN_S = 1.0
_SIGN_S = 10.0
_LONGEST_AWAY_S = 24 * 3600.0
_SAME_START_S = 5.0
_ATTENTIVE_S = 5.0
"""Text that was there when a job this old was first looked at is older than the look."""


@dataclass(eq=False, slots=True)
class Followed:
    """A job whose output is collected."""

    identity: JobIdentity
    folder: Path
    capture: JobCapture
    job: NodeJob | None
    names: FileNames
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    asked: set[int] = field(default_factory=set)
    """Processes that were looked at often enough."""
    trouble: str = ""
    left: list[StreamHead] = field(default_factory=list)
    """Streams that an agent before this one had begun."""


class Collecting:
    """Owns what is followed on this node."""

    def __init__(
        self,
        node: str,
        folder: Path,
        intake: Intake,
        opener: OutputOpener,
        look: Look,
        clock: Clock,
        room: Room,
        on_closed: Callable[[], None],
    ) -> None:
        """`on_closed` hears, in any thread, that a chunk waits."""
        self._node = node
        self._folder = folder
        self._intake = intake
        self._opener = opener
        self._look = look
        self._clock = clock
        self._room = room
        self._on_closed = on_closed
        self._followed: dict[JobIdentity, Followed] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def followed(self) -> tuple[Followed, ...]:
        """Every job whose output is not yet stored to the end."""
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

    async def run(
        self, changes: AsyncIterator[JobEvent], present: Callable[[], Iterable[JobIdentity]]
    ) -> None:
        """Until cancelled. `present` are the jobs on the node, complete from the first on."""
        try:
            self._take_up_left(set(present()))
            self._start(self._take_up_missed(), "logs missed")
            async for event in changes:
                self._hear(event)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for each in self.followed:
                await asyncio.to_thread(each.capture.stop)

    def _hear(self, event: JobEvent) -> None:
        identity = event.job.identity
        known = self._followed.get(identity)
        if known is None:
            known = self._begin(identity, event.job)
        known.job = event.job
        known.ended |= isinstance(event, JobEnded)
        known.changed.set()

    def _begin(self, identity: JobIdentity, job: NodeJob | None) -> Followed:
        name = f"{identity.job_id}-{int(identity.started * 1000)}"
        capture = JobCapture(name, self._clock, self._room, self._on_closed)
        folder = self._folder / name
        followed = Followed(identity, folder, capture, job, FileNames(folder))
        self._followed[identity] = followed
        capture.start()
        self._start(self._follow(followed), f"logs {name}")
        return followed

    def _start(self, step: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(step, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_up_left(self, present: set[JobIdentity]) -> None:
        """Jobs that ended while no agent looked, of which something waits here still."""
        here = {(each.job_id, int(each.started * 1000)) for each in present}
        for folder in sorted(self._folder.glob("*-*")):
            heads = [head for each in sorted(folder.iterdir()) if (head := head_of(each))]
            if not heads:
                continue
            job_id, started = heads[0].job_id, heads[0].started
            if (job_id, int(started * 1000)) in here:
                continue
            identity = JobIdentity("", job_id, 0, started)
            followed = self._begin(identity, None)
            followed.ended = True
            followed.left = heads

    async def _take_up_missed(self) -> None:
        """Jobs that came and went while no agent looked."""
        sign = self._folder / "alive"
        now = self._clock.now().timestamp()
        since = sign.stat().st_mtime if sign.exists() else now - _LONGEST_AWAY_S
        for number in itertools.count():
            try:
                missed = await self._intake.past_jobs(max(since, now - _LONGEST_AWAY_S) - 5.0)
            except LatticeError:
                await asyncio.sleep(_RETRY_S[min(number, len(_RETRY_S) - 1)])
                continue
            break
        for each in missed:
            known = any(
                one.identity.job_id == each.job_id
                and abs(one.identity.started - each.started) < _SAME_START_S
                for one in self.followed
            )
            if not known:
                followed = self._begin(JobIdentity("", each.job_id, 0, each.started), None)
                followed.ended = True
                followed.changed.set()
        while True:
            await asyncio.to_thread(sign.touch)
            await asyncio.sleep(_SIGN_S)

    async def _follow(self, followed: Followed) -> None:
        try:
            while not followed.ended:
                followed.changed.clear()
                await self._look_around(followed)
                await followed.changed.wait()
            await self._end(followed)
        except Exception:  # noqa: BLE001 - one job's defect is not the agent's end
            _log.exception("job %d: its output is not followed", followed.identity.job_id)
        finally:
            followed.names.close()

    async def _look_around(self, followed: Followed) -> None:
        """Several looks, until something changes again."""
        for pause_s in _LOOKS_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await followed.changed.wait()
                return
            await self._until_answered(followed, self._open_writers)
            if pause_s >= _PATIENT_S:
                await self._settle_names(followed)

    async def _until_answered(
        self, followed: Followed, ask: Callable[[Followed], Awaitable[None]]
    ) -> None:
        for number in itertools.count():
            try:
                await ask(followed)
            except _FINAL as error:
                self._tell(followed, error)
                # Slurm may not have said yet that the job is here.
                if not isinstance(error, NotFound) or number >= _NOT_FOUND_TRIES:
                    return
                await asyncio.sleep(_RETRY_S[0])
            except LatticeError as error:
                self._tell(followed, error)
                await asyncio.sleep(_RETRY_S[min(number, len(_RETRY_S) - 1)])
            else:
                followed.trouble = ""
                return

    def _tell(self, followed: Followed, error: LatticeError) -> None:
        if followed.trouble != error.message:
            _log.warning("output of job %d: %s", followed.identity.job_id, error.message)
        followed.trouble = error.message

    async def _open_writers(self, followed: Followed) -> None:
        job = followed.job
        if job is None or followed.ended:
            return
        writers = await asyncio.to_thread(writers_of, job, self._look)
        fresh = [each for each in writers if each.pid not in followed.asked][:64]
        if not fresh:
            return
        pids = [each.pid for each in fresh]
        admission = await self._admit(followed, pids)
        opened = await self._opener.open_output(admission.grant, pids)
        await self._take(followed, opened, writers, admission)
        # One that has files now keeps them; one that has none may be about to open them.
        tasks = {each.pid for each in writers if not each.daemon}
        followed.asked |= tasks & {each.pid for file in opened.files for each in file.holders}

    async def _admit(
        self, followed: Followed, pids: Sequence[int], kind: LogKind = LogKind.STDOUT
    ) -> Admission:
        identity = followed.identity
        # A node that has nothing of the job may have lost it: then the store says where to go on.
        return await self._intake.admit(
            identity.job_id,
            identity.started,
            pids,
            kind=kind,
            tell_stored=not followed.folder.exists(),
        )

    async def _take(
        self,
        followed: Followed,
        opened: OpenedOutputs,
        writers: tuple[Writer, ...],
        admission: Admission,
        kind: LogKind | None = None,
    ) -> None:
        with opened:
            fresh = not all(followed.names.knows(each) for each in opened.files)
            for each in followed.names.take(opened.files, writers, kind):
                await self._begin_stream(followed, each, admission.stored)
            if fresh and opened.watch_fd is not None:
                followed.capture.watch(os.dup(opened.watch_fd))

    async def _settle_names(self, followed: Followed) -> None:
        for each in followed.names.settle():
            await self._begin_stream(followed, each, {})

    async def _begin_stream(
        self, followed: Followed, named: NamedFile, stored: Mapping[StreamKey, Stored]
    ) -> None:
        stream = await asyncio.to_thread(self._stream, followed, named, stored)
        followed.capture.add(stream)

    def _stream(
        self, followed: Followed, named: NamedFile, stored: Mapping[StreamKey, Stored]
    ) -> Stream:
        kind, source, file = named.kind, named.source, named.file
        identity = followed.identity
        head = StreamHead(
            node=self._node,
            job_id=identity.job_id,
            started=identity.started,
            kind=kind,
            source=source,
            path=file.path,
        )
        spool = StreamSpool(
            followed.folder / f"{kind.value}-{source}", head, stored.get((kind, source))
        )
        age_s = self._clock.now().timestamp() - identity.started
        late = age_s > _ATTENTIVE_S or followed.ended
        return Stream(FileTail(file.fd, spool.mark, spool.end.offset), spool, late=late)

    async def _end(self, followed: Followed) -> None:
        """The job's processes are gone: read the rest, and stay until it is stored."""
        await self._settle_names(followed)
        for kind in () if followed.capture.streams else LogKind:
            await self._until_answered(followed, partial(self._open_named, kind))
        for head in followed.left:
            taken = {
                (each.spool.head.kind, each.spool.head.source) for each in followed.capture.streams
            }
            if (head.kind, head.source) not in taken:
                followed.capture.add(await asyncio.to_thread(self._left_stream, followed, head))
        followed.capture.finish()
        streams = followed.capture.streams
        while not (followed.capture.over and all(each.spool.stored.last for each in streams)):
            followed.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await followed.changed.wait()
        await asyncio.to_thread(self._remove, followed)
        self._followed.pop(followed.identity, None)

    async def _open_named(self, kind: LogKind, followed: Followed) -> None:
        """The file that Slurm names, if this node is the one that ran the script."""
        admission = await self._admit(followed, (), kind)
        done = admission.stored.get((kind, LogSource("batch")))
        if not admission.path or (done is not None and done.last):
            return
        opened = await self._opener.open_output_file(admission.grant, admission.path)
        await self._take(followed, opened, (), admission, kind)

    def _left_stream(self, followed: Followed, head: StreamHead) -> Stream:
        """One whose file nobody can open any more: what was read of it is sent."""
        spool = StreamSpool(followed.folder / f"{head.kind.value}-{head.source}", head)
        return Stream(NoTail(spool.mark, spool.end.offset), spool, late=True)

    def _remove(self, followed: Followed) -> None:
        for stream in followed.capture.streams:
            stream.spool.remove()
        with suppress(OSError):
            followed.folder.rmdir()
