"""What people are told of a job while it runs: figures, alerts, nodes, modes, states. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from lattice.domain.alert import Phase, Severity
from lattice.domain.allocation import ExitCode, State
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.telemetry import Mode

NODE_LOST = "node_lost"
"""The one rule that is judged on the server: a node can't tell that it is gone."""
USUAL = (
    Shown.GPU_UTILIZATION,
    Shown.GPU_MEMORY_USED,
    Shown.CPU_UTILIZATION,
    Shown.MEMORY_USED,
    Shown.NETWORK_TX_BYTES,
    Shown.NETWORK_RX_BYTES,
    Shown.IO_READ_BYTES,
    Shown.IO_WRITE_BYTES,
)
"""The metrics that are told where none are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """What of a job is wanted."""

    metrics: tuple[Shown, ...] = ()
    """None: the usual ones."""
    alerts_only: bool = False
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of one node, summed up over its GPUs, or of the whole job."""

    metric: Shown
    value: float | None = None
    """None: nobody measured it, and `reason` says why."""
    unit: str = ""
    source: Provenance = Provenance.UNAVAILABLE
    reason: str = ""
    last_error: str = ""
    scope: str = ""
    """`node` where the figure is the whole node's and not the job's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What one node measured at one moment."""

    node: str
    time: datetime
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMeasured:
    """What the nodes measured since the last of these: one message however many they are."""

    type: Literal["measured"] = "measured"
    time: datetime
    """The newest moment in it."""
    resolution_s: float
    nodes: tuple[NodeFigures, ...]
    summary: tuple[Figure, ...]
    """Over all nodes whose figures are current, also those that told nothing new."""
    measured: int
    """So many of the job's nodes are in the summary …"""
    node_count: int
    """… of so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAlert:
    """An alert fires, clears, or rests on what is not measured any more.

    The same node, rule and subject are the same alert over all its phases.
    """

    type: Literal["alert"] = "alert"
    node: str
    rule: str
    """A rule of `lattice.domain.alert`, or `node_lost`."""
    subject: str = ""
    phase: Phase
    severity: Severity
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    since: datetime
    time: datetime
    lasted_s: float | None = None
    """For one that has cleared."""
    words: str
    remedy: str = ""
    follows: bool = False
    """True if the next record is another alert or node of the same moment."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.rule, self.subject


class NodeWord(StrEnum):
    """What can be said of a node besides what it measures."""

    STALE = "stale"
    """It has stopped answering; what was told of it is not current any more."""
    BACK = "back"
    OVER = "over"
    """The job's processes are gone from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchNode:
    """One node has stopped answering, is back, or is done."""

    type: Literal["node"] = "node"
    node: str
    word: NodeWord
    time: datetime
    since: datetime | None = None
    seconds: float | None = None
    """How long it was away, for one that is back."""
    reason: str = ""
    follows: bool = False
    """As for an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMode:
    """How closely the job is measured from now on."""

    type: Literal["mode"] = "mode"
    mode: Mode
    interval_s: float
    until: datetime | None = None
    set_by: str = ""
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchProgress:
    """Whether the job gets on.

    Told at first, when no sign of it has moved for long, and when one moves again.
    """

    type: Literal["progress"] = "progress"
    time: datetime
    moving: bool
    output: datetime | None = None
    """When each sign last moved on any node; None: it was not seen to."""
    processor: datetime | None = None
    storage: datetime | None = None
    network: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """What Slurm says of the job, whenever that changes; a higher attempt is a requeue."""

    type: Literal["state"] = "state"
    allocation: str
    state: State
    attempt: int
    nodes: str = ""
    node_count: int = 0
    time: datetime
    words: str = ""
    """Why it waits, where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEnd:
    """The job is over; nothing comes after this."""

    type: Literal["ended"] = "ended"
    allocation: str
    state: State
    attempt: int
    exit_code: ExitCode | None = None
    ended: datetime | None = None
    time: datetime


class NoteKind(StrEnum):
    """What can happen to the stream itself."""

    ALIVE = "alive"
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    SLURM_AWAY = "slurm_away"
    """States pause; what nodes tell goes on."""
    SLURM_BACK = "slurm_back"
    LEFT_OUT = "left_out"
    """The reader was too slow for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchNote:
    """Something to know about the stream."""

    type: Literal["note"] = "note"
    kind: NoteKind
    time: datetime
    words: str = ""
    seconds: float | None = None


WatchRecord: TypeAlias = (
    WatchMeasured
    | WatchAlert
    | WatchNode
    | WatchMode
    | WatchProgress
    | WatchState
    | WatchEnd
    | WatchNote
)
