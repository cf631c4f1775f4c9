"""What a job writes, as positions in streams. Pure.

A log stream is one file of one attempt on one node. Its offset counts bytes and its line counts
line feeds, from the attempt's first byte on and through truncation and rotation. Both follow from
the file alone: whoever reads it again counts the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

LONGEST_LINE_BYTES = 64 * 1024
"""What is shown of one line; the store keeps it whole."""

LATEST_MS = 253_402_300_799_999
"""The last moment that a calendar has a date for, in milliseconds since 1970."""

_SOURCE = re.compile(
    r"(batch|extern|interactive|\d{1,10}(?:\+\d{1,6})?)(?:\.(\d{1,9}))?(?:~([1-9]\d{0,3}))?"
)


class LogKind(StrEnum):
    """Which of the two. Slurm writes both into one file unless told otherwise: then `stdout`."""

    STDOUT = "stdout"
    STDERR = "stderr"


class BadSource(ValueError):
    """The text names no source of output."""


@dataclass(frozen=True, slots=True, order=True)
class LogSource:
    """Who writes: the batch script, a whole step on this node, or one task of a step.

    `copy` tells files apart that have the same writer, in the order they were found.
    """

    step: str
    task: int | None = None
    copy: int = 1

    def __str__(self) -> str:
        task = "" if self.task is None else f".{self.task}"
        return f"{self.step}{task}" + (f"~{self.copy}" if self.copy > 1 else "")

    @classmethod
    def parse(cls, text: str) -> LogSource:
        """Read what `str` wrote. Raises `BadSource`."""
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
    """A place in a stream: so many bytes, and so many line feeds, lie before it."""

    offset: int = 0
    line: int = 0

    def past(self, text: bytes) -> Position:
        """The place after this text."""
        return Position(self.offset + len(text), self.line + text.count(b"\n"))


class GapCause(StrEnum):
    """Why bytes are missing. There are no others."""

    TRUNCATED = "truncated"
    DELETED = "deleted"
    POWER_CUT = "power_cut"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    UNREADABLE = "unreadable"
    TAMPERED = "tampered"
    """Changed or removed in the object store after it was sealed. Only a server says this."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that were written and can't be read any more. They count in no offset.

    `lost_bytes` is what is known to be missing; None where not even that is known.
    """

    at: Position
    cause: GapCause
    lost_bytes: int | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a stream that was read at one moment."""

    at: Position
    time_ms: int
    late: bool
    text: bytes
    counted: int | None = field(default=None, compare=False, repr=False)
    """How many line feeds are in the text, where someone has counted them."""

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

    def starting_at(self, offset: int) -> Piece:
        """The same without what lies before `offset`."""
        before = self.text[: max(0, offset - self.at.offset)]
        if not before:
            return self
        return Piece(self.at.past(before), self.time_ms, self.late, self.text[len(before) :])
