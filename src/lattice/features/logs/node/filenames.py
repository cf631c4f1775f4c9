"""Which stream each file of a job is: as it was remembered, by who holds it, or not known yet.

A file keeps its name for as long as the job has anything here, over restarts of the agent too:
what was found in another order then would otherwise be mixed up.

Whether its lines are labelled is decided with the name. slurmstepd opens a file for a task and lets
go of it before the task begins; one that it keeps, it writes itself, and only to label it.
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
    Writer,
    is_kept,
    is_labelled,
    is_nameless,
    stream_of,
)

_PATIENCE_S = 2.5
"""slurmstepd lets go of a task's file within milliseconds of its beginning."""
StreamKey: TypeAlias = tuple[LogKind, LogSource]


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file to follow; its descriptor belongs to whoever was given it."""

    kind: LogKind
    source: LogSource
    file: OutputFile
    labelled: bool = False
    """True where each line has its task before it."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    file: OutputFile
    writers: tuple[Writer, ...]
    kept_since: float
    kept_until: float
    """When it was first and last seen that slurmstepd keeps it though a task of its step runs."""

    @property
    def labelled(self) -> bool:
        return self.kept_until - self.kept_since >= _PATIENCE_S


class FileNames:
    """One job's files. Close it: files without a name wait here, open."""

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
        self, files: Iterable[OutputFile], writers: Sequence[Writer], named: LogKind | None = None
    ) -> Iterator[NamedFile]:
        """Those of them that are new and have a name now. The descriptors given are copies.

        `named` is what Slurm calls a file that was opened by its path.
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
        """Nothing more will be learnt: those that wait, by what is known of them."""
        while self._waiting:
            identity, waiting = next(reversed(self._waiting.items()))
            if waiting.labelled:
                self._labelled.add(identity)
            yield self._give(waiting.file, waiting.writers, None)
            # Only now: whoever could not begin it asks again.
            del self._waiting[identity]

    def take_back(self, named: NamedFile) -> None:
        """One from `take` that could not be begun: it is given again."""
        self._given.discard(named.file.identity)
        os.close(named.file.fd)

    def close(self) -> None:
        for identity in tuple(self._waiting):
            self._drop(identity)

    def _wait(self, file: OutputFile, writers: tuple[Writer, ...]) -> None:
        now = self._clock.monotonic()
        before = self._waiting.get(file.identity)
        since, until = (before.kept_since, before.kept_until) if before else (math.inf, -math.inf)
        if is_kept(file, writers):
            since, until = min(since, now), now
        self._drop(file.identity)
        self._waiting[file.identity] = _Waiting(file, writers, since, until)

    def _give(
        self, file: OutputFile, writers: Sequence[Writer], named: LogKind | None
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
