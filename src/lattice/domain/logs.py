"""What a job writes, as positions in streams. Pure.

A log stream is one file of one attempt on one node. Its offset counts bytes and its line counts
line feeds, from the attempt's first byte on and through truncation and rotation. Both depend only
on the file, so every reader counts the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

LONGEST_LINE_BYTES = 64 * 1024
"""How much of one line is shown; the store keeps all of it."""

LATEST_MS = 253_402_300_799_999
"""The last time that has a date, in milliseconds since 1970."""

_SOURCE = re.compile(
    r"(batch|extern|interactive|\d{1,10}(?:\+\d{1,6})?)(?:\.(\d{1,9}))?(?:~([1-9]\d{0,3}))?"
)


class LogKind(StrEnum):
    """Which of the two. By default Slurm writes both into one file: then `stdout`."""

    STDOUT = "stdout"
    STDERR = "stderr"


class BadSource(ValueError):
    """The text is no source of output."""


@dataclass(frozen=True, slots=True, order=True)
class LogSource:
    """The writer: the batch script, a whole step on this node, or one task of a step.

    `copy` numbers files with the same writer, in the order in which they were found.
    """

    step: str
    task: int | None = None
    copy: int = 1

    def __str__(self) -> str:
        task = "" if self.task is None else f".{self.task}"
        return f"{self.step}{task}" + (f"~{self.copy}" if self.copy > 1 else "")

    @classmethod
    def parse(cls, text: str) -> LogSource:
        """Parse what `str` wrote. Raises `BadSource`."""
        found = _SOURCE.fullmatch(text) if text.isascii() else None
        if found is None:
            raise BadSource("not a source of output")
        step, task, copy = found.groups()
        return cls(step, None if task is None else int(task), int(copy or 1))


@dataclass(frozen=True, slots=True, order=True)
class StreamName:
    """One stream of an attempt: `n1/stdout/batch`."""

    node: str
    kind: LogKind
    source: LogSource

    def __str__(self) -> str:
        return f"{self.node}/{self.kind.value}/{self.source}"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a stream: the number of bytes and line feeds before it."""

    offset: int = 0
    line: int = 0

    def past(self, text: bytes) -> Position:
        return Position(self.offset + len(text), self.line + text.count(b"\n"))


class GapCause(StrEnum):
    """Why bytes are missing."""

    TRUNCATED = "truncated"
    DELETED = "deleted"
    POWER_CUT = "power_cut"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    UNREADABLE = "unreadable"
    TAMPERED = "tampered"
    """Changed or removed in the object store after it was sealed. Only a server reports this."""
    UNKNOWN = "unknown"
    """A cause that this version does not know. A newer agent reported it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that were written and can't be read any more. They count in no offset.

    `lost_bytes` is how many are missing; None if unknown.
    """

    at: Position
    cause: GapCause
    lost_bytes: int | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a stream that was read at one time, or at the times of its `marks`."""

    at: Position
    time_ms: int
    """When its last byte was read."""
    late: bool
    text: bytes
    counted: int | None = field(default=None, compare=False, repr=False)
    """The number of line feeds in the text, if already counted."""
    marks: tuple[tuple[int, int], ...] = ()
    """Of text that was read at several times: the bytes so far, and the time, in order."""

    @property
    def line_feeds(self) -> int:
        return self.text.count(b"\n") if self.counted is None else self.counted

    @property
    def end(self) -> Position:
        return Position(self.at.offset + len(self.text), self.at.line + self.line_feeds)

    @property
    def end_offset(self) -> int:
        """The end without its lines, which take time to count."""
        return self.at.offset + len(self.text)

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory."""
        return len(self.text)

    def starting_at(self, offset: int) -> Piece:
        """The piece without what lies before `offset`."""
        size = min(offset - self.at.offset, len(self.text))
        if size <= 0:
            return self
        at = self.at.past(self.text[:size])
        marks = tuple((each - size, time_ms) for each, time_ms in self.marks if each > size)
        return Piece(at, self.time_ms, self.late, self.text[size:], marks=marks)

    def up_to(self, offset: int) -> Piece:
        """The piece without what lies behind `offset`."""
        size = offset - self.at.offset
        if size >= len(self.text):
            return self
        marks = tuple((min(each, size), time_ms) for each, time_ms in self.marks)
        whole = next((number for number, each in enumerate(marks, 1) if each[0] == size), 0)
        time_ms = marks[whole - 1][1] if whole else self.time_ms
        return Piece(self.at, time_ms, self.late, self.text[:size], marks=marks[:whole])

    def by_time(self) -> Iterator[Piece]:
        """A piece for each time at which it was read."""
        if not self.marks:
            yield self
            return
        at, begin = self.at, 0
        for size, time_ms in self.marks:
            part = self.text[begin:size] if size < len(self.text) or begin else self.text
            # All line feeds are known, so those of the last part need no count.
            lines = part.count(b"\n") if size < len(self.text) else self.end.line - at.line
            yield Piece(at, time_ms, self.late, part, lines)
            at, begin = Position(at.offset + len(part), at.line + lines), size
