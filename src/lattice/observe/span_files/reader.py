"""Reads the records of one allocation from files, and counts the rest.

Only regular files are read, and only with the reader's own rights. Files, bytes, records and time
are bounded; what was left out is named.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from lattice.domain.allocation import Allocation
from lattice.domain.span import Ownership, SpanScope, WrittenMark, WrittenSpan
from lattice.observe.span_files.objects import MOST_OBJECT_BYTES, ObjectSplitter
from lattice.observe.span_files.records import RecordDecoder, WrittenRecord

SUFFIXES = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class SpanFileLimits:
    """What is read at most, of all files together."""

    files: int = 1000
    size_bytes: int = 2**30
    records: int = 500_000
    time_s: float = 30.0
    object_bytes: int = MOST_OBJECT_BYTES
    block_bytes: int = 2**20
    """At once."""


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A record that may be shown; `rank` is -1 if none is named."""

    record: WrittenSpan | WrittenMark
    is_named: bool
    rank: int


class SpanFiles:
    """The files that somebody names, read once."""

    def __init__(
        self, paths: Iterable[str], job_id: int, limits: SpanFileLimits | None = None
    ) -> None:
        """`%j` in a path is the number of the job."""
        self._paths = [Path(each.replace("%j", str(job_id))) for each in paths]
        self._limits = limits or SpanFileLimits()
        self._missing: list[str] = []
        self._counts: Counter[str] = Counter()
        self._size_bytes = 0
        self._until_s = 0.0

    def of(self, allocation: Allocation, now: datetime) -> Iterator[OwnRecord]:
        """Those that name this allocation or none, and are of its time."""
        self._until_s = time.monotonic() + self._limits.time_s
        scope, taken = SpanScope(allocation, now), 0
        for job, record in self._records():
            owned = scope.ownership(job)
            begin_s, end_s = _times(record)
            if owned is Ownership.OTHER:
                self._counts["other job"] += 1
            elif not scope.has_time(begin_s, end_s):
                self._counts["other time"] += 1
            elif taken >= self._limits.records:
                self._missing.append(f"only the first {taken} records are shown")
                return
            else:
                taken += 1
                rank = job.rank if job is not None else -1
                yield OwnRecord(record, owned is Ownership.OWN, rank)
        if self._size_bytes and not taken:
            self._missing.append("no span is of this job")

    def missing(self) -> tuple[str, ...]:
        """What was not read or not shown, for people. Complete after the last record."""
        counted = (
            self._counted("broken", "line", "{} could not be read"),
            self._counted("other", "line", "passed over: {} without a span"),
            self._counted("other job", "record", "left out: {} of another job"),
            self._counted("other time", "record", "left out: {} of another time"),
        )
        return (*self._missing, *(each for each in counted if each))

    def _counted(self, key: str, unit: str, text: str) -> str:
        count = self._counts[key]
        return text.format(f"{count} {unit}{'s' if count != 1 else ''}") if count else ""

    def _records(self) -> Iterator[WrittenRecord]:
        for file in self._files():
            try:
                with _opened(file) as stream:
                    yield from self._of_file(stream, file)
            except OSError as error:
                self._missing.append(f"{file}: {error.strerror or error}")
            if self._is_over():
                return

    def _files(self) -> Iterator[Path]:
        found = 0
        for path in self._paths:
            try:
                inside = sorted(_in_folder(path)) if path.is_dir() else [path]
            except OSError as error:
                self._missing.append(f"{path}: {error.strerror or error}")
                continue
            if not inside:
                self._missing.append(f"{path} has no file that ends in {', '.join(SUFFIXES)}")
            for file in inside:
                if found == self._limits.files:
                    self._missing.append(f"only the first {found} files are read")
                    return
                found += 1
                yield file

    def _of_file(self, stream: BinaryIO, file: Path) -> Iterator[WrittenRecord]:
        limit = self._limits.object_bytes
        splitter, decoder = ObjectSplitter(limit), RecordDecoder()
        try:
            for block in self._blocks(stream, splitter):
                for each in splitter.objects(block):
                    yield from decoder.records(each)
                if self._is_over():
                    self._missing.append(f"{file} was not read to its end: it is too large")
                    return
            splitter.end()
        finally:
            self._counts["broken"] += splitter.broken + decoder.broken
            self._counts["other"] += splitter.other + decoder.other

    def _blocks(self, stream: BinaryIO, splitter: ObjectSplitter) -> Iterator[list[bytes]]:
        """Whole lines, without their ends. A line that is too long is none, and counted."""
        rest, is_passing = b"", False
        while data := stream.read(self._limits.block_bytes):
            self._size_bytes += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            if lines and is_passing:
                is_passing = False
                del lines[0]
            if is_passing or len(rest) > self._limits.object_bytes:
                splitter.broken += not is_passing
                rest, is_passing = b"", True
            yield lines
        if rest:
            yield [rest]

    def _is_over(self) -> bool:
        return self._size_bytes > self._limits.size_bytes or time.monotonic() > self._until_s


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Raises `OSError`. A pipe is not waited for."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is no file")
        yield stream


def _in_folder(folder: Path) -> Iterator[Path]:
    for each in folder.iterdir():
        if each.suffix in SUFFIXES:
            yield each


def _times(record: WrittenSpan | WrittenMark) -> tuple[float, float]:
    if isinstance(record, WrittenSpan):
        return record.begin_s, record.end_s
    return record.time_s, record.time_s
