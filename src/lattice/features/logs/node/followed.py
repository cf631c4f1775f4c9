"""A job with its collected output, and the port to the jobs on this node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lattice.domain.job_seal import JobSeal
from lattice.domain.nodejobs import JobEvent, JobIdentity, NodeJob, StepId, WatchPause
from lattice.features.logs.node.capture import JobCapture
from lattice.features.logs.node.file_journal import Noting
from lattice.features.logs.node.filenames import FileNames, StreamKey
from lattice.features.logs.node.spool import StoredChunk, StreamHead, head_of


@dataclass(eq=False, slots=True)
class FollowedFile:
    """A job with its collected output."""

    identity: JobIdentity
    folder: Path
    capture: JobCapture
    job: NodeJob | None
    names: FileNames
    noting: Noting
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    ended_at: float = 0.0
    """By this node's clock; 0 if no agent saw the end."""
    asked: set[int] = field(default_factory=set)
    """Processes that need no further look."""
    unwatched: bool = False
    """True after a flood became quiet, until its files have inotify watches again."""
    at_once: int = 64
    """How many processes one request has."""
    trouble: str = ""
    refused: str = ""
    """Why one of its files was not opened, if a retry would not change that."""
    unknown: bool = False
    """True if Slurm had no such job at the last request for its files."""
    stored: Mapping[StreamKey, StoredChunk] = field(default_factory=dict)
    """What the store had of the job at the first request."""
    admitted: bool = False
    """True once a server has granted its output, and so told whether it is sensitive."""
    seal: JobSeal | None = None
    """What seals the job's output, once a server has answered; None if it is not sensitive."""

    @property
    def noticed_late(self) -> bool:
        """True if it was noticed after its end, so its true start is earlier."""
        return bool(self.identity.boot_id) and not self.identity.inode

    @property
    def unread(self) -> bool:
        """True if it is over and nothing of it is on this disk yet."""
        return self.ended and not self.capture.streams

    @property
    def steps(self) -> frozenset[StepId]:
        """The steps as last read."""
        return frozenset(each.id for each in self.job.steps) if self.job else frozenset()

    def ask_anew(self) -> None:
        """Request its files again, to get inotify watches for them."""
        if not self.ended:
            self.unwatched = True
            self.asked.clear()
            self.changed.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the job's end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.ended and (left_s := deadline - loop.time()) > 0:
            self.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self.changed.wait()

    def left(self) -> list[StreamHead]:
        """Streams that an earlier agent began and nobody continues."""
        taken = {(each.spool.head.kind, each.spool.head.source) for each in self.capture.streams}
        return [each for each in heads_in(self.folder) if (each.kind, each.source) not in taken]


class JobsHere(Protocol):
    """The jobs on this node."""

    @property
    def jobs(self) -> Mapping[JobIdentity, NodeJob]:
        """As last read; complete once `ready` returned."""
        ...

    async def ready(self) -> None: ...

    def changes(self) -> AsyncIterator[JobEvent]: ...

    async def reread(self, identity: JobIdentity) -> NodeJob | None:
        """Read one again; None if it is gone."""
        ...

    async def missed(self) -> WatchPause:
        """Wait for the next period in which jobs could start and end unseen."""
        ...


def heads_in(folder: Path) -> list[StreamHead]:
    """The heads of all streams in a job's folder."""
    if not folder.exists():
        return []
    return [head for each in sorted(folder.iterdir()) if (head := head_of(each))]
