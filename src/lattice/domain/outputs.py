"""The files a job writes its output to, opened for reading, and the port that opens them.

The agent may not read a user's files. Whoever stands behind `OutputOpener` opens them as the
job's owner, by the owner's rights alone, and hands over descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from lattice.domain.logs import LogKind


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A process that has the file open for writing, and as which descriptor."""

    pid: int
    descriptor: int
    rank: int = -1
    """Its task's number in the step, where its environment says one; -1: not known."""
    step: str = ""
    """Which step it was of, where that was written down."""
    daemon: bool = False
    """It was Slurm's own process for the step, and no task; as far as that was written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file. `fd` is open for reading and belongs to whoever holds the `OpenedOutputs`."""

    fd: int
    device: int
    inode: int
    born: float | None
    """When the file was made, in Unix seconds, where the file system keeps that."""
    size: int
    path: str
    """What it was called when it was opened, to show; never a name to open again."""
    holders: tuple[Holder, ...] = ()
    """Empty for a file that was asked for by its path."""
    comm: str = ""
    """The first holder's program."""
    flags: int = 0
    position: int = 0
    """Where the first holder stood, and how it opened the file (O_APPEND, say)."""
    watch: int = -1
    """Its number among the notices of `watch_fd`; -1 where it is not watched."""

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class SkippedOutput:
    """A descriptor behind which nothing was opened, and why: a pipe, a file not the owner's."""

    holder: Holder
    why: str


@dataclass(frozen=True, slots=True)
class OpenedOutputs:
    """What one question brought. Close it, or use it in a `with`."""

    watch_fd: int | None
    """An inotify instance that tells of each file's writes; None: look again and again instead."""
    files: tuple[OutputFile, ...]
    skipped: tuple[SkippedOutput, ...] = ()
    more: bool = False
    """Of noted files: there are others, to be asked for with a larger `skip`."""

    def close(self) -> None:
        """Let go of every descriptor. Once only: the numbers are soon somebody else's."""
        for each in (self.watch_fd, *(file.fd for file in self.files)):
            if each is not None:
                with suppress(OSError):
                    os.close(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OutputOpener(Protocol):
    """Opens outputs of the job that a grant names, on this node.

    `PermissionRefused`: the owner is nobody to act for. `DataUnavailable`: there is no such file
    for the owner. `UsageError`: too much at once. `Unavailable`: a retry may help.
    """

    async def open_output(self, grant: str, pids: Sequence[int]) -> OpenedOutputs:
        """Standard output and error of these processes, and all that srun and slurmstepd write.

        Processes that are gone, or not the job's, bring nothing.
        """
        ...

    async def open_output_file(self, grant: str, path: str) -> OpenedOutputs:
        """One file by its absolute path."""
        ...

    async def note_output(self, job_id: int, pids: Sequence[int]) -> int:
        """Have written down what these processes write to; how many files. Needs no grant."""
        ...

    async def open_noted(
        self, grant: str, since_ms: int, until_ms: int, skip: int
    ) -> OpenedOutputs:
        """What was noted of processes that began in between (0: up to now), and is still there.

        `MOST_OUTPUTS` at a time, after `skip` others. Whatever `open_output` found is noted too.
        """
        ...


@dataclass(frozen=True, slots=True)
class NamedOutputs:
    """The files that Slurm names for a job's script, and the node that runs it."""

    host: str
    files: Mapping[LogKind, str]
    """Standard error only where it is a file of its own."""


class JobFiles(Protocol):
    """What the scheduler knows of a job's files, as long as it remembers the job."""

    async def of(self, job_id: int) -> NamedOutputs:
        """Raises `NotFound` and `Unavailable`."""
        ...
