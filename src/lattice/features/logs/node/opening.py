"""Opens the files of a job, by every way there is, and begins a stream for each.

while it runs   what its processes have open, by the helper, with a grant for those processes
afterwards      the file that Slurm names, and those that were noted while it ran
at last         what is on this node's disk of a file that nobody can open any more
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Mapping, Sequence

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, Unavailable, UsageError
from lattice.base.impatience import PATIENCE_S, ImpatientReader
from lattice.base.impatience_threads import Progress, Stuck
from lattice.domain.logs import GapCause, LogKind, LogSource
from lattice.domain.nodejobs import UNREADABLE, JobIdentity
from lattice.domain.outputs import OpenedOutputs, OutputOpener
from lattice.domain.privileged import MOST_OUTPUTS
from lattice.features.logs.node.capture import Stream
from lattice.features.logs.node.filenames import NamedFile, StreamKey
from lattice.features.logs.node.followed import Followed
from lattice.features.logs.node.intake import Admission, Intake
from lattice.features.logs.node.spool import Stored, StreamHead, StreamSpool
from lattice.features.logs.node.tail import FileTail, NoTail
from lattice.features.logs.node.writers import (
    Look,
    ProcessLook,
    Writer,
    noted_writers,
    writers_of,
)

_log = logging.getLogger(__name__)

_SOON_S = 0.2
"""An answer that takes longer is not waited for before the files are noted."""
_FEW = 16
_ATTENTIVE_S = 5.0
"""Text that was there when a job this old was first looked at is older than the look."""

_UNREADABLE_HINT = "A file system that does not answer holds them; the node looks again."


def tell(followed: Followed, trouble: str) -> None:
    """Why its output is not followed; once for each reason."""
    if followed.trouble != trouble:
        _log.warning("output of job %d: %s", followed.identity.job_id, trouble)
    followed.trouble = trouble


class Opening:
    """Asks the server for grants and the helper for files."""

    def __init__(
        self,
        node: str,
        intake: Intake,
        opener: OutputOpener,
        look: Look,
        clock: Clock,
        stamps: Clock,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`stamps` is the time that lines are given; `clock` is the node's own.

        `patience_s`: how long one process may hold whoever reads it.
        """
        self._node = node
        self._intake = intake
        self._opener = opener
        self._look = look
        self._clock = clock
        self._stamps = stamps
        self._impatient: ImpatientReader[JobIdentity] = ImpatientReader(
            "output writers", patience_s=patience_s
        )

    async def writers(self, followed: Followed) -> tuple[Writer, ...]:
        """The processes of the job that may write its output.

        Those that hold whoever reads them are left out. Raises `Unavailable` where that was only
        found now, or where they are too many.
        """
        job = followed.job
        if job is None or followed.ended:
            return ()

        def read(_: JobIdentity, progress: Progress) -> tuple[Writer, ...]:
            def seen_of(pid: int) -> ProcessLook | None:
                if pid in progress.skip:
                    return None
                progress.reads(pid)
                return self._look(pid)

            return writers_of(job, seen_of)

        found = await self._impatient.read_one(followed.identity, read)
        if isinstance(found, Stuck):
            raise Unavailable(f"Output is not looked for: {UNREADABLE}.", hint=_UNREADABLE_HINT)
        return found

    async def open_writers(self, followed: Followed) -> None:
        """What they have open by now, of those that were not asked before."""
        writers = await self.writers(followed)
        fresh = [each.pid for each in writers if each.pid not in followed.asked]
        while fresh:
            pids = fresh[: followed.at_once]
            try:
                await self._open_pids(followed, pids, writers)
            except UsageError as error:
                # More files than one answer brings.
                followed.at_once = len(pids) // 2 or _FEW
                if len(pids) > 1:
                    continue
                tell(followed, error.message)
                followed.asked.add(pids[0])
            fresh = fresh[len(pids) :]
        if followed.unwatched:
            followed.unwatched = False
            followed.capture.watched()

    async def _open_pids(
        self, followed: Followed, pids: Sequence[int], writers: tuple[Writer, ...]
    ) -> None:
        late = asyncio.get_running_loop().call_later(_SOON_S, followed.noting.awaited)
        try:
            admission = await self._admit(followed, pids)
            opened = await self._opener.open_output(admission.grant, pids)
        except LatticeError:
            followed.noting.awaited()
            raise
        finally:
            late.cancel()
        holding = {each.pid for file in opened.files for each in file.holders}
        followed.noting.answered(holding)
        followed.stored = admission.stored or followed.stored
        await self._take(followed, opened, writers, followed.stored)
        # One that has files now keeps them; one that has none may be about to open them.
        tasks = {each.pid for each in writers if not each.daemon}
        followed.asked |= tasks & holding

    async def _admit(
        self, followed: Followed, pids: Sequence[int], kind: LogKind = LogKind.STDOUT
    ) -> Admission:
        identity = followed.identity
        # A node that has nothing of the job may have lost it: then the store says where to go on.
        admission = await self._intake.admit(
            identity.job_id,
            identity.started,
            pids,
            kind=kind,
            tell_stored=not followed.folder.exists(),
        )
        followed.unknown = False
        return admission

    async def _take(
        self,
        followed: Followed,
        opened: OpenedOutputs,
        writers: tuple[Writer, ...],
        stored: Mapping[StreamKey, Stored],
        kind: LogKind | None = None,
        *,
        noted: bool = False,
    ) -> None:
        with opened:
            fresh = not all(followed.names.knows(each) for each in opened.files)
            anew = followed.unwatched and bool(opened.files)
            for each in followed.names.take(opened.files, writers, kind):
                done = stored.get((each.kind, each.source)) if noted else None
                if done is not None and done.last:
                    os.close(each.file.fd)
                else:
                    await self._begin_or_return(followed, each, stored)
            if (fresh or anew) and opened.watch_fd is not None:
                followed.capture.watch(os.dup(opened.watch_fd))

    async def settle_names(self, followed: Followed) -> None:
        """Begin those that waited for a better name."""
        for each in followed.names.settle():
            await self._begin_stream(followed, each, {})

    async def _begin_or_return(
        self, followed: Followed, named: NamedFile, stored: Mapping[StreamKey, Stored]
    ) -> None:
        try:
            await self._begin_stream(followed, named, stored)
        except OSError:
            followed.names.take_back(named)
            raise

    async def _begin_stream(
        self, followed: Followed, named: NamedFile, stored: Mapping[StreamKey, Stored]
    ) -> None:
        await asyncio.to_thread(self._add_stream, followed, named, stored)

    def _add_stream(
        self, followed: Followed, named: NamedFile, stored: Mapping[StreamKey, Stored]
    ) -> None:
        kind, source, file = named.kind, named.source, named.file
        identity = followed.identity
        head = StreamHead(
            node=self._node,
            job_id=identity.job_id,
            started=identity.started,
            kind=kind,
            source=source,
            path=file.path,
            labelled=named.labelled,
        )
        spool = StreamSpool(
            followed.folder / f"{kind.value}-{source}", head, stored.get((kind, source))
        )
        age_s = self._clock.now().timestamp() - identity.started
        late = age_s > _ATTENTIVE_S or followed.ended
        tail = FileTail(file.fd, spool.mark, spool.end.offset)
        followed.capture.add(Stream(tail, spool, late=late))

    async def open_named(self, kind: LogKind, followed: Followed) -> None:
        """The file that Slurm names, if this node is the one that ran the script."""
        admission = await self._admit(followed, (), kind)
        followed.stored = admission.stored or followed.stored
        done = admission.stored.get((kind, LogSource("batch")))
        if not admission.path or (done is not None and done.last):
            return
        opened = await self._opener.open_output_file(admission.grant, admission.path)
        await self._take(followed, opened, (), admission.stored, kind)

    async def open_noted(self, followed: Followed) -> None:
        """The files that were noted while the job ran; what is followed already stays so."""
        identity = followed.identity
        stored: Mapping[StreamKey, Stored] = {}
        for skip in itertools.count(0, MOST_OUTPUTS):
            admission = await self._intake.admit_noted(
                identity.job_id,
                identity.started,
                until=followed.ended_at,
                skip=skip,
                tell_stored=not skip,
            )
            stored = admission.stored or stored
            followed.stored = stored or followed.stored
            opened = await self._opener.open_noted(
                admission.grant, admission.since_ms, admission.until_ms, skip
            )
            for each in opened.skipped:
                _log.warning("output of job %d: a file is left: %s", identity.job_id, each.why)
            await self._take(followed, opened, noted_writers(opened.files), stored, noted=True)
            if not opened.more:
                break
        followed.noting.all_opened()

    async def open_left(self, followed: Followed) -> None:
        """Streams whose files nobody can open any more: what was read is sent, and its end."""
        for head in await asyncio.to_thread(followed.left):
            await asyncio.to_thread(self._add_left_stream, followed, head)

    def _add_left_stream(self, followed: Followed, head: StreamHead) -> None:
        spool = StreamSpool(followed.folder / f"{head.kind.value}-{head.source}", head)
        if not spool.over:
            now_ms = int(self._stamps.now().timestamp() * 1000)
            spool.add_gap(GapCause.UNREADABLE, None, now_ms)
        tail = NoTail(spool.mark, spool.end.offset)
        followed.capture.add(Stream(tail, spool, late=True))
