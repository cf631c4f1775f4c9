"""A job whose output is collected on this node, and the port to the jobs that are here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lattice.domain.nodejobs import Absence, JobEvent, JobIdentity, NodeJob, StepId
from lattice.features.logs.node.capture import JobCapture
from lattice.features.logs.node.filenames import FileNames, StreamKey
from lattice.features.logs.node.noting import Noting
from lattice.features.logs.node.spool import Stored, StreamHead, head_of


@dataclass(eq=False, slots=True)
class Followed:
    """A job whose output is collected."""

    identity: JobIdentity
    folder: Path
    capture: JobCapture
    job: NodeJob | None
    names: FileNames
    noting: Noting
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    ended_at: float = 0.0
    """By this node's clock; 0: while no agent looked."""
    asked: set[int] = field(default_factory=set)
    """Processes that were looked at often enough."""
    unwatched: bool = False
    """True from when it has become quiet after a flood until its files are watched again."""
    at_once: int = 64
    """How many are asked for together."""
    trouble: str = ""
    refused: str = ""
    """Why one of its files was not opened, where asking again would change nothing."""
    unknown: bool = False
    """True if Slurm knew no such job when its files were last asked for."""
    stored: Mapping[StreamKey, Stored] = field(default_factory=dict)
    """What the store had of the job when it was first asked for."""

    @property
    def noticed_late(self) -> bool:
        """True if it was over when it was noticed, so that it began earlier than is known."""
        return bool(self.identity.boot_id) and not self.identity.inode

    @property
    def unread(self) -> bool:
        """True if it is over and nothing of it is on this disk yet."""
        return self.ended and not self.capture.streams

    @property
    def steps(self) -> frozenset[StepId]:
        """As last read."""
        return frozenset(each.id for each in self.job.steps) if self.job else frozenset()

    def ask_anew(self) -> None:
        """Its files are looked at and no longer watched, which they can be again."""
        if not self.ended:
            self.unwatched = True
            self.asked.clear()
            self.changed.set()

    async def pause(self, seconds: float) -> None:
        """Let time pass, but not beyond the job's end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.ended and (left_s := deadline - loop.time()) > 0:
            self.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self.changed.wait()

    def left(self) -> list[StreamHead]:
        """Streams that an agent before this one had begun, and that nobody goes on with."""
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
        """Read one anew; None if it is gone."""
        ...

    async def missed(self) -> Absence:
        """The next stretch in which jobs can have come and gone unseen."""
        ...


def heads_in(folder: Path) -> list[StreamHead]:
    """Of every stream that is kept in a job's folder."""
    if not folder.exists():
        return []
    return [head for each in sorted(folder.iterdir()) if (head := head_of(each))]
