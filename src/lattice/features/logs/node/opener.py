"""Opens the files of a job in every possible way, and begins a stream for each.

- While it runs: the files its processes have open, by the helper, with a grant for them.
- Afterwards: the file that Slurm names, and those that were noted during the run.
- Last: what this node's disk has of a file that can't be opened any more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
from collections.abc import Mapping, Sequence

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, LatticeError, Unavailable, UsageError
from lattice.base.impatience import PATIENCE_S, ImpatientReader
from lattice.base.impatience_threads import Stuck, ThreadProgress
from lattice.domain.logs import GapCause, LogKind, LogSource
from lattice.domain.nodejobs import UNREADABLE, JobIdentity
from lattice.domain.outputs import OpenedOutputs, OutputOpener
from lattice.domain.privileged import MOST_OUTPUTS
from lattice.features.logs.node.capture import Stream
from lattice.features.logs.node.filenames import NamedFile, StreamKey
from lattice.features.logs.node.followed import FollowedFile
from lattice.features.logs.node.intake import Intake, OutputAdmission
from lattice.features.logs.node.spool import StoredChunk, StreamHead, StreamSpool
from lattice.features.logs.node.tail import FileTail, NoTail
from lattice.features.logs.node.writers import (
    LogWriter,
    ProcessInfo,
    WriterCheck,
    noted_writers,
    writers_of,
)

_log = logging.getLogger(__name__)

_SOON_S = 0.2
"""If an answer takes longer, the files are noted first."""
_FEW = 16
_ATTENTIVE_S = 5.0
"""If a job this old is seen for the first time, its text is older than the read."""

_UNREADABLE_HINT = "A file system that does not answer holds them; the node looks again."


def report_trouble(followed: FollowedFile, trouble: str) -> None:
    """Log why its output is not followed, once for each reason."""
    if followed.trouble != trouble:
        _log.warning("output of job %d: %s", followed.identity.job_id, trouble)
    followed.trouble = trouble


class Opening:
    """Requests grants from the server and files from the helper."""

    def __init__(
        self,
        node: str,
        intake: Intake,
        opener: OutputOpener,
        read_process: WriterCheck,
        clock: Clock,
        stamps: Clock,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`stamps` gives the time of lines; `clock` is the node's own.

        `patience_s`: how long one process may block its reader.
        """
        self._node = node
        self._intake = intake
        self._opener = opener
        self._read_process = read_process
        self._clock = clock
        self._stamps = stamps
        self._impatient: ImpatientReader[JobIdentity] = ImpatientReader(
            "output writers", patience_s=patience_s
        )

    async def writers(self, followed: FollowedFile) -> tuple[LogWriter, ...]:
        """The processes of the job that may write its output.

        Processes that block their reader are left out. Raises `Unavailable` if that was found just
        now, or if they are too many.
        """
        job = followed.job
        if job is None or followed.ended:
            return ()

        def read(_: JobIdentity, progress: ThreadProgress) -> tuple[LogWriter, ...]:
            def seen_of(pid: int) -> ProcessInfo | None:
                if pid in progress.skip:
                    return None
                progress.reads(pid)
                return self._read_process(pid)

            return writers_of(job, seen_of)

        found = await self._impatient.read_one(followed.identity, read)
        if isinstance(found, Stuck):
            raise Unavailable(f"Output is not looked for: {UNREADABLE}.", hint=_UNREADABLE_HINT)
        return found

    async def open_writers(self, followed: FollowedFile) -> None:
        """Open the files of processes that were not asked before."""
        writers = await self.writers(followed)
        fresh = [each.pid for each in writers if each.pid not in followed.asked]
        while fresh:
            pids = fresh[: followed.at_once]
            try:
                await self._open_pids(followed, pids, writers)
            except UsageError as error:
                # More files than one answer can have.
                followed.at_once = len(pids) // 2 or _FEW
                if len(pids) > 1:
                    continue
                report_trouble(followed, error.message)
                followed.asked.add(pids[0])
            fresh = fresh[len(pids) :]
        if followed.unwatched:
            followed.unwatched = False
            followed.capture.watched()

    async def _open_pids(
        self, followed: FollowedFile, pids: Sequence[int], writers: tuple[LogWriter, ...]
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
        # A process with files keeps them; one without may open them soon.
        tasks = {each.pid for each in writers if not each.daemon}
        followed.asked |= tasks & holding

    async def _admit(
        self, followed: FollowedFile, pids: Sequence[int], kind: LogKind = LogKind.STDOUT
    ) -> OutputAdmission:
        identity = followed.identity
        # A node without a folder of the job may have lost it; the store then has the position.
        admission = await self._intake.admit(
            identity.job_id,
            identity.started,
            pids,
            kind=kind,
            with_stored=not followed.folder.exists(),
        )
        followed.unknown = False
        followed.admitted = True
        followed.seal = followed.seal or admission.seal
        return admission

    async def _take(
        self,
        followed: FollowedFile,
        opened: OpenedOutputs,
        writers: tuple[LogWriter, ...],
        stored: Mapping[StreamKey, StoredChunk],
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
                    continue
                try:
                    await asyncio.to_thread(self._add_stream, followed, each, stored)
                except OSError:
                    followed.names.take_back(each)
                    raise
            if (fresh or anew) and opened.watch_fd is not None:
                followed.capture.watch(os.dup(opened.watch_fd))

    async def settle_names(self, followed: FollowedFile) -> None:
        """Begin the files that waited for a better name."""
        for each in followed.names.settle():
            await asyncio.to_thread(self._add_stream, followed, each, {})

    def _add_stream(
        self, followed: FollowedFile, named: NamedFile, stored: Mapping[StreamKey, StoredChunk]
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
        folder = followed.folder / f"{kind.value}-{source}"
        spool = StreamSpool(folder, head, stored.get((kind, source)), followed.seal)
        age_s = self._clock.now().timestamp() - identity.started
        late = age_s > _ATTENTIVE_S or followed.ended
        tail = FileTail(file.fd, spool.mark, spool.end.offset, spool.seal.digest_key)
        followed.capture.add(Stream(tail, spool, late=late))

    async def open_named(self, kind: LogKind, followed: FollowedFile) -> None:
        """Open the file that Slurm names, if this node ran the script."""
        admission = await self._admit(followed, (), kind)
        followed.stored = admission.stored or followed.stored
        done = admission.stored.get((kind, LogSource("batch")))
        if not admission.path or (done is not None and done.last):
            return
        opened = await self._opener.open_output_file(admission.grant, admission.path)
        await self._take(followed, opened, (), admission.stored, kind)

    async def open_noted(self, followed: FollowedFile) -> None:
        """Open the files noted during the run; followed ones are not opened twice."""
        identity = followed.identity
        stored: Mapping[StreamKey, StoredChunk] = {}
        for skip in itertools.count(0, MOST_OUTPUTS):
            admission = await self._intake.admit_noted(
                identity.job_id,
                identity.started,
                until=followed.ended_at,
                skip=skip,
                with_stored=not skip,
            )
            followed.admitted = True
            followed.seal = followed.seal or admission.seal
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

    async def open_left(self, followed: FollowedFile) -> None:
        """Send what was read of files that can't be opened any more, and end their streams.

        What is sealed with a key that was destroyed is removed: nobody can read it.
        """
        left = await asyncio.to_thread(followed.left)
        if followed.seal is None and any(each.sealed for each in left):
            identity = followed.identity
            try:
                followed.seal = await self._intake.seal_of(identity.job_id, identity.started)
            except DataUnavailable as error:
                report_trouble(followed, error.message)
                await asyncio.to_thread(shutil.rmtree, followed.folder, ignore_errors=True)
                return
        for head in left:
            await asyncio.to_thread(self._add_left_stream, followed, head)

    def _add_left_stream(self, followed: FollowedFile, head: StreamHead) -> None:
        folder = followed.folder / f"{head.kind.value}-{head.source}"
        spool = StreamSpool(folder, head, seal=followed.seal if head.sealed else None)
        if not spool.over:
            now_ms = int(self._stamps.now().timestamp() * 1000)
            spool.add_gap(GapCause.UNREADABLE, None, now_ms)
        tail = NoTail(spool.mark, spool.end.offset)
        followed.capture.add(Stream(tail, spool, late=True))
