"""The records that people read: blocks of lines, gaps and notes, and the cursor. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, AnyStr, Literal, TypeAlias

from lattice.base.operation import FieldRule
from lattice.domain.allocation import ExitCode, State
from lattice.domain.logs import GapCause, LogKind
from lattice.domain.request_fields import Attempt

USUAL_PAGE_LINES = 1000
"""Lines of a page without a `limit`."""
LARGEST_PAGE = 10_000
"""The most lines of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """Consecutive whole lines of one stream that were read at one moment.

    The unit is a block and not a line, because a job may write a million lines a second.
    """

    type: Literal["lines"] = "lines"
    node: str
    stream: LogKind
    source: str
    """`batch`, a step `0`, or a task of it `0.3`."""
    rank: int | None = None
    """The task that wrote all of it, if known."""
    seq: int
    """The number of its first line in this stream; from 0."""
    count: int
    offset: int
    """The offset of its first byte in this stream."""
    time: datetime
    """When the agent read it, by the server's clock."""
    late: bool = False
    """True if the text existed before the agent's first read: it is older than `time`."""
    text: str
    """`count` lines, each with its line feed. Bytes that are no UTF-8 appear as `\\xNN`."""
    cut: int = 0
    """How many of its lines are cut because they are very long."""
    unfinished: bool = False
    """True for the beginning of a line without its line feed; `count` is 0.

    The whole line follows with the same number.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """A range that was written and can't be read any more."""

    type: Literal["gap"] = "gap"
    node: str
    stream: LogKind
    source: str
    seq: int
    offset: int
    time: datetime
    cause: GapCause
    lost_bytes: int | None = None
    """The size of the gap; None if unknown."""


class NoteKind(StrEnum):
    """What can happen to a stream besides lines and gaps."""

    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    STALLED = "stalled"
    NODE_LOST = "node_lost"
    ARCHIVE_AWAY = "archive_away"
    NOT_ARCHIVING = "not_archiving"
    CLOCK_CORRECTED = "clock_corrected"
    ATTEMPT_ENDED = "attempt_ended"
    TAMPERED = "tampered"
    """Stored output differs from its seal."""
    END = "end"
    ALIVE = "alive"
    """Nothing new, and every part between here and the job answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNote:
    """An event of the stream itself. `node` is empty if it concerns all nodes."""

    type: Literal["note"] = "note"
    kind: NoteKind
    time: datetime
    node: str = ""
    words: str = ""
    """The event as text for people."""
    seconds: float | None = None
    """How long it lasted, if it has ended."""
    lines: int | None = None
    """How many lines it concerns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines of an allocation. Empty and None mean no condition."""

    limit: Annotated[int, FieldRule(least=0, most=LARGEST_PAGE)] = 0
    """The most lines of a page."""
    follow: bool = False
    attempt: Attempt = 0
    """0: the newest."""
    stream: Annotated[tuple[LogKind, ...], FieldRule(longest=len(LogKind))] = ()
    nodes: Annotated[tuple[str, ...], FieldRule(name="node", longest=10_000)] = ()
    ranks: Annotated[tuple[int, ...], FieldRule(name="rank", longest=10_000)] = ()
    since: datetime | None = None
    until: datetime | None = None
    tail: Annotated[int | None, FieldRule(least=0, most=1_000_000)] = None
    """The last lines of all streams together."""
    grep: Annotated[str, FieldRule(longest=500)] = ""
    exclude: Annotated[str, FieldRule(longest=500)] = ""
    offset: Annotated[int | None, FieldRule(least=0, below=1 << 53)] = None
    cursor: Annotated[str, FieldRule(longest=512 * 1024)] = ""


LogRecord: TypeAlias = LogBlock | LogGap | LogNote


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """One page of an attempt's logs, merged in the order of time."""

    allocation: str
    attempt: int
    attempts: int
    records: tuple[LogRecord, ...]
    cursor: str = ""
    """Where the next page begins; empty after the last."""
    ranked: bool = False
    """True if the writer of every line is known."""
    finished: bool = False
    """True if nothing will be added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStreamFacts:
    """One stream of an attempt: its writer, and its size."""

    node: str
    stream: LogKind
    source: str
    rank: int | None = None
    bytes: int
    lines: int
    first: datetime | None = None
    last: datetime | None = None
    path: str = ""
    """The file on the node, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStreams:
    """The streams of one attempt."""

    allocation: str
    attempt: int
    attempts: int
    finished: bool
    streams: tuple[LogStreamFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """The state of the job itself."""

    id: str
    state: State
    exit_code: ExitCode | None = None
    node_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEndCard:
    """The part of an allocation's answer that this feature reads."""

    allocation: JobEnd


def has_longer(text: AnyStr, feed: AnyStr, longest: int) -> bool:
    """True if a line is longer; takes one step for each `longest` characters."""
    begin = 0
    while len(text) - begin > longest:
        end = text.rfind(feed, begin, begin + longest + 1)
        if end < 0:
            return True
        begin = end + 1
    return False
