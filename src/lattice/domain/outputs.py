"""The output files of a job, opened for reading, and the port that opens them.

The agent may not read a user's files. The implementation of `OutputOpener` opens them as the job's
owner, with the owner's rights alone, and passes descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from lattice.domain.allocation import Allocation
from lattice.domain.logs import LogKind


@dataclass(frozen=True, slots=True, order=True)
class OutputHolder:
    """A process that has the file open for writing, and its descriptor."""

    pid: int
    descriptor: int
    rank: int = -1
    """Its task's number in the step, from its environment; -1: unknown."""
    step: str = ""
    """The step it belonged to, if recorded."""
    daemon: bool = False
    """True if it was Slurm's own process for the step, and no task; as far as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file. `fd` is open for reading and belongs to the holder of the `OpenedOutputs`."""

    fd: int
    device: int
    inode: int
    born: float | None
    """When the file was created, in Unix seconds, if the file system keeps that."""
    size: int
    path: str
    """Its path when it was opened, to show; never a name to open again."""
    holders: tuple[OutputHolder, ...] = ()
    """Empty for a file that was requested by path."""
    comm: str = ""
    """The first holder's program."""
    flags: int = 0
    position: int = 0
    """The first holder's position, and how it opened the file (O_APPEND, for example)."""
    watch: int = -1
    """Its number among the notices of `watch_fd`; -1 if it is not watched."""

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class SkippedOutput:
    """A descriptor that was not opened, and why: a pipe, a file not the owner's."""

    holder: OutputHolder
    why: str


@dataclass(frozen=True, slots=True)
class OpenedOutputs:
    """The result of one question. Close it, or use it in a `with`."""

    watch_fd: int | None
    """An inotify instance with the writes of each file; None: poll instead."""
    files: tuple[OutputFile, ...]
    skipped: tuple[SkippedOutput, ...] = ()
    more: bool = False
    """For noted files: there are others, to be requested with a larger `skip`."""

    def close(self) -> None:
        """Close every descriptor. Call it once only: the numbers are soon reused."""
        for each in (self.watch_fd, *(file.fd for file in self.files)):
            if each is not None:
                with suppress(OSError):
                    os.close(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OutputOpener(Protocol):
    """Opens outputs of the job that a grant names, on this node.

    `PermissionRefused`: the helper does not act for this owner. `DataUnavailable`: the owner has no
    such file. `UsageError`: too much at once. `Unavailable`: a retry may help.
    """

    async def open_output(self, grant: str, pids: Sequence[int]) -> OpenedOutputs:
        """Standard output and error of these processes, and all that srun and slurmstepd write.

        Processes that have ended, or are not the job's, add nothing.
        """
        ...

    async def open_output_file(self, grant: str, path: str) -> OpenedOutputs:
        """One file by its absolute path."""
        ...

    async def note_output(self, job_id: int, pids: Sequence[int]) -> int:
        """Have the output files of these processes recorded. Returns their number. No grant."""
        ...

    async def open_noted(
        self, grant: str, since_ms: int, until_ms: int, skip: int
    ) -> OpenedOutputs:
        """Recorded files of processes that began in between (0: up to now), if they still exist.

        `MOST_OUTPUTS` at a time, after `skip` others. Files that `open_output` found are recorded
        too.
        """
        ...


@dataclass(frozen=True, slots=True)
class NamedOutputs:
    """The files that Slurm names for a job's script, and the node that runs it."""

    host: str
    files: Mapping[LogKind, str]
    """Standard error only if it has its own file."""


def named_outputs(host: str | None, output: str | None, error: str | None) -> NamedOutputs:
    """The files that can be read: by absolute paths, and not the null device."""
    named = ((LogKind.STDOUT, output), (LogKind.STDERR, error))
    files = {
        kind: path
        for kind, path in named
        if path is not None and path.startswith("/") and path != "/dev/null"
    }
    if files.get(LogKind.STDERR) == files.get(LogKind.STDOUT):
        files.pop(LogKind.STDERR, None)
    return NamedOutputs(host=host or "", files=files)


class JobFiles(Protocol):
    """A job's files by the scheduler, as long as it has the job."""

    async def of(self, allocation: Allocation) -> NamedOutputs:
        """The files of a job's script. Raises `NotFound` and `Unavailable`."""
        ...
