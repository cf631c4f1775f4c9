"""What people see of a job's use of its nodes: columns, rows, and where it all comes from. Pure.

A cell has a number that something measured, or None and the reason. One answer is one look: the
live screen asks again and again, and with `history` the first look brings the past along.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lattice.domain.allocation import State
from lattice.domain.measured import SHOWN, Shown, Summing
from lattice.domain.metric import Provenance
from lattice.domain.source import Source
from lattice.domain.telemetry import MetricOrigin

LONGEST_DURATION_S = 400 * 86400
HISTORY_POINTS = 60
"""At most so many in the history of one cell."""


class TopMode(StrEnum):
    """What a row is about."""

    SUMMARY = "summary"
    """One row for all nodes."""
    PER_NODE = "per_node"
    PER_GPU = "per_gpu"
    WIDE = "wide"
    """A row a node, and every metric there is."""


class RowKind(StrEnum):
    """What one row is about."""

    SUMMARY = "summary"
    NODE = "node"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQuery:
    """What is asked. `duration_s` None: the newest values; else means and peaks over that time."""

    mode: TopMode = TopMode.SUMMARY
    duration_s: int | None = None
    attempt: int = 0
    """0: the newest."""
    history: bool = False
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """One metric of the answer; the cells of every row stand in the order of the columns."""

    metric: Shown
    unit: str
    summing: Summing
    """What the summary's value is of those of the nodes or GPUs."""
    per_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPoint:
    """A value of the past, in the unit of its column."""

    time: float
    """In seconds since 1970."""
    value: float


@dataclass(slots=True, kw_only=True)
class TopCell:
    """A number, or why there is none.

    Not frozen: a look at many nodes makes thousands, and each would take three times as long.
    """

    metric: Shown
    value: float | None = None
    """In the unit of its column; with a duration the mean over it."""
    peak: float | None = None
    """The highest over the duration; None where none was asked for."""
    reason: str = ""
    """Why there is no value; empty where there is one."""
    last_error: str = ""
    """The same in the words of whoever failed."""
    source: Provenance = Provenance.UNAVAILABLE
    scope: str = ""
    """`node` where the figure is the whole node's and not the job's alone."""
    of: int = 0
    """How many nodes or GPUs it sums up; 1 in the row of one."""
    history: tuple[TopPoint, ...] = ()
    """Oldest first, evenly spaced; where nothing was measured there is no point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """All nodes, one node, or one GPU."""

    kind: RowKind
    node: str = ""
    """Empty in the summary."""
    gpu_uuid: str = ""
    age_s: float | None = None
    """Of its newest sample; None: there is none that is current."""
    reason: str = ""
    """Why it has no current sample at all, as far as anyone can say."""
    cells: tuple[TopCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopAnswer:
    """One look at an attempt. The first row is always the summary."""

    allocation: str
    id: str
    name: str
    attempt: int
    attempts: int
    state: State
    nodes: str
    """In Slurm's notation."""
    node_count: int
    started: datetime | None = None
    ended: datetime | None = None
    taken: datetime
    """By the server's clock. Of a finished attempt the values are those at its end."""
    mode: TopMode
    duration_s: float | None = None
    origin: MetricOrigin
    columns: tuple[TopColumn, ...]
    rows: tuple[TopRow, ...]
    notes: tuple[str, ...] = ()
    """What to know of the whole: that a part of the system does not answer, say."""
    queries: tuple[str, ...] = ()
    """What the metric store was asked, where that was wanted."""
    sources: tuple[Source, ...] = ()
    """Where the state comes from, and how old that is."""


_USUAL = (
    Shown.GPU_UTILIZATION,
    Shown.GPU_MEMORY_USED,
    Shown.GPU_POWER_DRAW,
    Shown.CPU_UTILIZATION,
    Shown.MEMORY_USED,
    Shown.NETWORK_TX_BYTES,
    Shown.NETWORK_RX_BYTES,
    Shown.IO_READ_BYTES,
    Shown.IO_WRITE_BYTES,
    Shown.IO_LATENCY_P99,
)
_OF_A_GPU = tuple(each for each in Shown if SHOWN[each].per_gpu)


def metrics_of(mode: TopMode) -> tuple[Shown, ...]:
    """The columns of a mode."""
    if mode is TopMode.WIDE:
        return tuple(Shown)
    return _OF_A_GPU if mode is TopMode.PER_GPU else _USUAL


def columns_of(mode: TopMode) -> tuple[TopColumn, ...]:
    """The same with what each is."""
    return tuple(
        TopColumn(
            metric=each,
            unit=SHOWN[each].unit,
            summing=SHOWN[each].summing,
            per_gpu=SHOWN[each].per_gpu,
        )
        for each in metrics_of(mode)
    )
