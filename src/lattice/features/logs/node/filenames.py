"""Which stream each file of a job is: as it was remembered, by who holds it, or not known yet.

A file keeps its name for as long as the job has anything here, over restarts of the agent too:
what was found in another order then would otherwise be mixed up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from lattice.domain.logs import LogKind, LogSource
from lattice.domain.outputs import OutputFile
from lattice.features.logs.node.spool import head_of, mark_of
from lattice.features.logs.node.writers import Writer, is_nameless, stream_of

StreamKey: TypeAlias = tuple[LogKind, LogSource]


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file to follow; its descriptor belongs to whoever was given it."""

    kind: LogKind
    source: LogSource
    file: OutputFile


class FileNames:
    """One job's files. Close it: files without a name wait here, open."""

    def __init__(self, folder: Path) -> None:
        self._names: dict[tuple[int, int], StreamKey] = dict(_remembered(folder))
        self._given: set[tuple[int, int]] = set()
        self._waiting: dict[tuple[int, int], tuple[OutputFile, tuple[Writer, ...]]] = {}

    def take(
        self, files: Iterable[OutputFile], writers: Sequence[Writer], named: LogKind | None = None
    ) -> Iterator[NamedFile]:
        """Those of them that are new and have a name now. The descriptors given are copies.

        `named` is what Slurm calls a file that was opened by its path.
        """
        for file in files:
            if file.identity in self._given:
                continue
            self._drop(file.identity)
            nameless = is_nameless(file, writers) and file.identity not in self._names
            if nameless:
                kept = replace(file, fd=os.dup(file.fd))
                self._waiting[file.identity] = kept, tuple(writers)
            else:
                yield self._give(replace(file, fd=os.dup(file.fd)), writers, named)

    def knows(self, file: OutputFile) -> bool:
        """True if it was taken before."""
        return file.identity in self._given or file.identity in self._waiting

    def settle(self) -> Iterator[NamedFile]:
        """Nothing more will be learnt: those that wait, by what is known of them."""
        while self._waiting:
            _, (file, writers) = self._waiting.popitem()
            yield self._give(file, writers, None)

    def close(self) -> None:
        for identity in tuple(self._waiting):
            self._drop(identity)

    def _give(
        self, file: OutputFile, writers: Sequence[Writer], named: LogKind | None
    ) -> NamedFile:
        key = self._names.get(file.identity)
        if key is None and named is not None:
            key = named, LogSource("batch")
        if key is None:
            key = stream_of(file, writers, self._names.values())
        self._names[file.identity] = key
        self._given.add(file.identity)
        return NamedFile(*key, file)

    def _drop(self, identity: tuple[int, int]) -> None:
        if identity in self._waiting:
            os.close(self._waiting.pop(identity)[0].fd)


def _remembered(folder: Path) -> Iterator[tuple[tuple[int, int], StreamKey]]:
    for each in sorted(folder.iterdir()) if folder.exists() else ():
        head, mark = head_of(each), mark_of(each)
        if head is not None and mark is not None:
            yield (mark.device, mark.inode), (head.kind, head.source)
