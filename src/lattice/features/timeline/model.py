"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lattice.domain.allocation import State
from lattice.domain.source import Source
from lattice.domain.training_run import TrainingRun

MOST_ATTEMPTS = 8
MOST_TRAININGS = 4
MOST_RUN_LINES = 6
MOST_LINE_POINTS = 200
MOST_SPAN_NAMES = 200


class PhaseKind(StrEnum):
    """What an allocation did."""

    WAITING = "waiting"
    STARTING = "starting"
    """It has nodes, and they are made ready for it."""
    RUNNING = "running"
    ENDING = "ending"
    """Its processes are gone or going, and its nodes are not free yet."""


class SpanKind(StrEnum):
    """What a span is about, by its name."""

    EPOCH = "epoch"
    CHECKPOINT = "checkpoint"
    SPAN = "span"


class MarkKind(StrEnum):
    """What a job has written down as a moment."""

    EVENT = "event"
    """It has a name of its own: an event of a span, or a log record that is one."""
    LOG = "log"


class EventKind(StrEnum):
    """What happened to an allocation besides its phases."""

    ALERT = "alert"
    JOB = "job"
    """The job reported it itself."""
    MODE = "mode"
    """From then on it is measured in the mode that the `name` says."""
    LOST_OUTPUT = "lost_output"
    """What it wrote then can't be read any more."""
    SESSION = "session"
    """The owner had a terminal in it."""
    READ = "read"
    """Somebody else read its output or measurements."""
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePhase:
    """One stretch of an attempt; `ended` is None while it lasts."""

    kind: PhaseKind
    attempt: int
    started: datetime
    ended: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineAttempt:
    """One start of the allocation."""

    number: int
    state: State
    submitted: datetime
    started: datetime | None = None
    ended: datetime | None = None
    nodes: str = ""
    node_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """A moment, or a stretch that may still last: then `lasts` is True."""

    kind: EventKind
    time: datetime
    ended: datetime | None = None
    lasts: bool = False
    node: str = ""
    text: str = ""
    name: str = ""
    """The rule of an alert; the name that the job gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """A value at a time."""

    time: datetime
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineLine:
    """Values over time: measured ones, or a metric that a run has logged."""

    name: str
    unit: str = ""
    run: str = ""
    """The id of the run; empty for what Lattice measured."""
    attempt: int = 0
    """The attempt of a measured line."""
    step_s: float | None = None
    """Between the points of a measured line."""
    via: str = ""
    """`store`, `kept summary` or `stored logs`, of a measured line."""
    points: tuple[TimelinePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All of an allocation on one axis, from its submit to its end or to now."""

    allocation: str
    id: str
    job_id: int
    cluster: str
    name: str
    user: str
    state: State
    begin: datetime
    until: datetime
    """Its end, or the time of the answer."""
    finished: bool
    attempts: tuple[TimelineAttempt, ...]
    left_out: int = 0
    """How many older attempts are not shown."""
    phases: tuple[TimelinePhase, ...] = ()
    runs: tuple[TrainingRun, ...] = ()
    events: tuple[TimelineEvent, ...] = ()
    lines: tuple[TimelineLine, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be shown, with the reason."""
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStretch:
    """A time in which spans of one name ran; `share` is how much of it, up to 1."""

    started: datetime
    ended: datetime
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """All spans of one name that a job has written."""

    name: str
    kind: SpanKind
    named: bool
    """False if these spans name no job: they may be another one's."""
    parent: str
    """The name of the spans around most of them; empty if there are none."""
    depth: int
    count: int
    total_s: float
    """The sum of their lengths."""
    longest_s: float
    busy_s: float
    """The time in which at least one ran."""
    first: datetime
    last: datetime
    rank: int | None = None
    """Epochs of many tasks overlap: those of this rank are shown."""
    stretches: tuple[SpanStretch, ...] = ()
    each: bool = False
    """True if each stretch is one span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """All events of one name, or all log records of one severity."""

    name: str
    kind: MarkKind
    named: bool
    count: int
    first: datetime
    last: datetime
    text: str
    """Of the newest one."""
    times: tuple[datetime, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimeline(Timeline):
    """A timeline with what the job has written of itself, in files that the caller has read."""

    spans: tuple[SpanRow, ...] = ()
    marks: tuple[MarkRow, ...] = ()
