"""Which stream each file of a job is: by the spool, by its holders, or not known yet.

A file keeps its name as long as the job has a spool here, across restarts of the agent. Otherwise
files found in another order would be mixed up.

The name also decides whether lines are labelled. slurmstepd opens a file for a task and closes it
before the task begins. A file that it keeps open, it writes itself, and only to label it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from lattice.base.clock import Clock
from lattice.domain.logs import LogKind, LogSource
from lattice.domain.outputs import OutputFile
from lattice.features.logs.node.spool import StreamHead, head_of, mark_of
from lattice.features.logs.node.writers import (
    LogWriter,
    is_held_by_daemon,
    is_labelled,
    is_nameless,
    stream_of,
)

_PATIENCE_S = 2.5
"""slurmstepd closes a task's file within milliseconds of its start."""
StreamKey: TypeAlias = tuple[LogKind, LogSource]


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file to follow; the receiver owns its descriptor."""

    kind: LogKind
    source: LogSource
    file: OutputFile
    labelled: bool = False
    """True if each line begins with the number of its task."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    file: OutputFile
    writers: tuple[LogWriter, ...]
    held_since: float
    held_until: float
    """When slurmstepd first and last held it while a task of its step ran (monotonic)."""

    @property
    def labelled(self) -> bool:
        return self.held_until - self.held_since >= _PATIENCE_S


class FileNames:
    """One job's files. Call `close`: files without a name wait here with open descriptors."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._names: dict[tuple[int, int], StreamKey] = {}
        self._labelled: set[tuple[int, int]] = set()
        for identity, head in _remembered(folder):
            self._names[identity] = head.kind, head.source
            if head.labelled:
                self._labelled.add(identity)
        self._given: set[tuple[int, int]] = set()
        self._waiting: dict[tuple[int, int], _Waiting] = {}

    def take(
        self,
        files: Iterable[OutputFile],
        writers: Sequence[LogWriter],
        named: LogKind | None = None,
    ) -> Iterator[NamedFile]:
        """The new files that have a name now. Their descriptors are copies.

        `named` is the kind of a file that was opened by the path from Slurm.
        """
        for file in files:
            if file.identity in self._given:
                continue
            nameless = is_nameless(file, writers) and file.identity not in self._names
            if nameless:
                self._wait(replace(file, fd=os.dup(file.fd)), tuple(writers))
            else:
                self._drop(file.identity)
                yield self._give(replace(file, fd=os.dup(file.fd)), writers, named)

    def knows(self, file: OutputFile) -> bool:
        """True if it was taken before."""
        return file.identity in self._given or file.identity in self._waiting

    def settle(self) -> Iterator[NamedFile]:
        """Name the waiting files by what is known of them."""
        while self._waiting:
            identity, waiting = next(reversed(self._waiting.items()))
            if waiting.labelled:
                self._labelled.add(identity)
            yield self._give(waiting.file, waiting.writers, None)
            # Only now: a caller that fails to begin it calls again.
            del self._waiting[identity]

    def take_back(self, named: NamedFile) -> None:
        """Return a file from `take` that could not be begun; `take` gives it again."""
        self._given.discard(named.file.identity)
        os.close(named.file.fd)

    def close(self) -> None:
        for identity in tuple(self._waiting):
            self._drop(identity)

    def _wait(self, file: OutputFile, writers: tuple[LogWriter, ...]) -> None:
        now = self._clock.monotonic()
        before = self._waiting.get(file.identity)
        since, until = (before.held_since, before.held_until) if before else (math.inf, -math.inf)
        if is_held_by_daemon(file, writers):
            since, until = min(since, now), now
        self._drop(file.identity)
        self._waiting[file.identity] = _Waiting(file, writers, since, until)

    def _give(
        self, file: OutputFile, writers: Sequence[LogWriter], named: LogKind | None
    ) -> NamedFile:
        key = self._names.get(file.identity)
        if key is None and named is not None:
            key = named, LogSource("batch")
        if key is None:
            key = stream_of(file, writers, self._names.values())
            if is_labelled(file, writers):
                self._labelled.add(file.identity)
        self._names[file.identity] = key
        self._given.add(file.identity)
        return NamedFile(*key, file, file.identity in self._labelled)

    def _drop(self, identity: tuple[int, int]) -> None:
        if identity in self._waiting:
            os.close(self._waiting.pop(identity).file.fd)


def _remembered(folder: Path) -> Iterator[tuple[tuple[int, int], StreamHead]]:
    for each in sorted(folder.iterdir()) if folder.exists() else ():
        head, mark = head_of(each), mark_of(each)
        if head is not None and mark is not None:
            yield (mark.device, mark.inode), head
