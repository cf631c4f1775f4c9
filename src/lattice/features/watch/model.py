"""Records of a watched job: figures, alerts, nodes, modes, states. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from lattice.base.operation import FieldRule
from lattice.domain.alert import Phase, Severity
from lattice.domain.allocation import ExitCode, State
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.telemetry import Mode

NODE_LOST = "node_lost"
"""The only rule judged on the server: a node can't report that it is gone."""
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
"""The default metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """A request."""

    metrics: Annotated[tuple[Shown, ...], FieldRule(longest=len(Shown))] = ()
    """Empty for the default metrics."""
    alerts_only: bool = False
    cursor: Annotated[str, FieldRule(longest=16 * 1024)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFigure:
    """One metric of one node, combined over its GPUs, or of the whole job."""

    metric: Shown
    value: float | None = None
    """None if it was not measured; then `reason` is set."""
    unit: str = ""
    source: Provenance = Provenance.UNAVAILABLE
    reason: str = ""
    last_error: str = ""
    scope: str = ""
    """`node` if the figure is for the whole node and not only for the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """The measurements of one node at one time."""

    node: str
    time: datetime
    figures: tuple[WatchFigure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMeasured:
    """Measurements since the last such record: one message for any number of nodes."""

    type: Literal["measured"] = "measured"
    time: datetime
    """The newest time in it."""
    resolution_s: float
    nodes: tuple[NodeFigures, ...]
    summary: tuple[WatchFigure, ...]
    """Over all nodes with current figures, including those without new ones."""
    measured: int
    """Number of nodes in the summary."""
    node_count: int
    """Number of nodes of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAlert:
    """An alert fires, clears, or becomes unknown because its metric is no longer measured.

    Records with the same node, rule and subject are one alert over all its phases.
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
    """Only for a cleared alert."""
    words: str
    remedy: str = ""
    follows: bool = False
    """True if the next record is another alert or node of the same moment."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.rule, self.subject


class NodeWord(StrEnum):
    """The state of a node, besides its measurements."""

    STALE = "stale"
    """It has stopped answering; its last values are not current."""
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
    """How long it was away, for `back`."""
    reason: str = ""
    follows: bool = False
    """As for an alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchMode:
    """How often the job is sampled from now on."""

    type: Literal["mode"] = "mode"
    mode: Mode
    interval_s: float
    until: datetime | None = None
    set_by: str = ""
    time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchProgress:
    """Whether the job makes progress.

    Sent at first, when no sign has changed for long, and when one changes again.
    """

    type: Literal["progress"] = "progress"
    time: datetime
    moving: bool
    output: datetime | None = None
    """When each sign last changed on any node; None if never seen."""
    processor: datetime | None = None
    storage: datetime | None = None
    network: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """The job's state in Slurm, at every change; a higher attempt is a requeue."""

    type: Literal["state"] = "state"
    allocation: str
    state: State
    attempt: int
    nodes: str = ""
    node_count: int = 0
    time: datetime
    words: str = ""
    """Why it waits, if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEnd:
    """The job is over; this is the last record."""

    type: Literal["ended"] = "ended"
    allocation: str
    state: State
    attempt: int
    exit_code: ExitCode | None = None
    ended: datetime | None = None
    time: datetime


class WatchNoteKind(StrEnum):
    """Events of the stream itself."""

    ALIVE = "alive"
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    SLURM_AWAY = "slurm_away"
    """States pause; records from nodes continue."""
    SLURM_BACK = "slurm_back"
    LEFT_OUT = "left_out"
    """The reader was too slow for all events."""
    SLICE = "slice"
    """A GPU slice that the job runs in: at the start, and when its state changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchNote:
    """An event of the stream itself."""

    type: Literal["note"] = "note"
    kind: WatchNoteKind
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


def moment(seconds: float) -> datetime:
    """Return seconds since 1970 as a time of a record."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_or_none(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)
