"""What people read of logs: blocks of lines, gaps and notes, and where to go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from lattice.domain.allocation import ExitCode, State
from lattice.domain.logs import GapCause, LogKind

USUAL_PAGE_LINES = 1000
"""Of a page where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """Whole lines of one stream, one after the other, that were read at one moment.

    A block and not a line is the unit: a job may write a million lines a second.
    """

    type: Literal["lines"] = "lines"
    node: str
    stream: LogKind
    source: str
    """`batch`, a step `0`, or a task of it `0.3`."""
    rank: int | None = None
    """The task that wrote all of it, where that is known."""
    seq: int
    """The number of its first line in this stream; from 0."""
    count: int
    offset: int
    """Where its first byte lies in this stream."""
    time: datetime
    """When the node's agent read it, by the server's clock."""
    late: bool = False
    """True if it was there before the agent looked: it is older than `time` says."""
    text: str
    """`count` lines, each with its line feed. Bytes that are no UTF-8 stand as `\\xNN`."""
    cut: int = 0
    """How many of its lines are shown in part, because they are very long."""
    unfinished: bool = False
    """True for the beginning of a line that goes on: it has no line feed and a count of 0, and
    comes again, whole, under the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Something was written here that nobody can read any more."""

    type: Literal["gap"] = "gap"
    node: str
    stream: LogKind
    source: str
    seq: int
    offset: int
    time: datetime
    cause: GapCause
    lost_bytes: int | None = None
    """What is known to be missing; None: not even that."""


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
    """Stored output is not what was sealed."""
    END = "end"
    ALIVE = "alive"
    """Nothing new, and every part between here and the job answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNote:
    """Something to know about the stream itself. `node` is empty where it concerns all."""

    type: Literal["note"] = "note"
    kind: NoteKind
    time: datetime
    node: str = ""
    words: str = ""
    """The same for people."""
    seconds: float | None = None
    """How long it lasted, where it has an end."""
    lines: int | None = None
    """How many lines it concerns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines of an allocation. Empty and None mean: no such condition."""

    attempt: int = 0
    """0: the newest."""
    streams: tuple[LogKind, ...] = ()
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    tail: int | None = None
    """The last so many lines of all."""
    grep: str = ""
    exclude: str = ""
    offset: int | None = None
    limit: int = 0
    cursor: str = ""
    follow: bool = False


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
    """One stream of an attempt: who writes it, and how much there is of it."""

    node: str
    stream: LogKind
    source: str
    rank: int | None = None
    bytes: int
    lines: int
    first: datetime | None = None
    last: datetime | None = None
    path: str = ""
    """The file on the node, where it is known."""


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
    """How far the job itself is."""

    id: str
    state: State
    exit_code: ExitCode | None = None
    node_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEndCard:
    """What this feature reads of an allocation's card."""

    allocation: JobEnd
