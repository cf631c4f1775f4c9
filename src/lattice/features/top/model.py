"""A job's use of its nodes: columns, rows and sources. Pure.

A cell has a measured number, or None and the reason. The live screen repeats the
request; with `history` the first answer has past values.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from lattice.base.moment import parse_duration
from lattice.base.operation import FieldRule
from lattice.domain.allocation import State
from lattice.domain.measured import SHOWN, Shown, Summing
from lattice.domain.metric import Provenance
from lattice.domain.request_fields import Attempt
from lattice.domain.source import Source
from lattice.domain.telemetry import MetricOrigin

LONGEST_DURATION_S = 400 * 86400
HISTORY_POINTS = 60
"""Most points in the history of one cell."""


class TopMode(StrEnum):
    """What a row describes."""

    SUMMARY = "summary"
    """One row for all nodes."""
    PER_NODE = "per_node"
    PER_GPU = "per_gpu"
    WIDE = "wide"
    """One row per node, with every metric."""


class RowKind(StrEnum):
    """What one row describes."""

    SUMMARY = "summary"
    NODE = "node"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopQuery:
    """A request. `duration_s` None asks for the newest values, else for means and peaks over it."""

    mode: TopMode = TopMode.SUMMARY
    duration_s: Annotated[
        int | None, FieldRule(name="duration", longest=32, read=parse_duration)
    ] = None
    attempt: Attempt = 0
    history: bool = False
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """One metric of the answer; the cells of every row are in the order of the columns."""

    metric: Shown
    unit: str
    summing: Summing
    """How the summary combines the values of nodes or GPUs."""
    per_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPoint:
    """A past value, in the unit of its column."""

    time: float
    """In seconds since 1970."""
    value: float


@dataclass(slots=True, kw_only=True)
class TopCell:
    """A number, or the reason why there is none.

    Not frozen: an answer for many nodes has thousands, and freezing would triple the time.
    """

    metric: Shown
    value: float | None = None
    """In the unit of its column; with a duration the mean over it."""
    peak: float | None = None
    """The highest over the duration; None without a duration."""
    reason: str = ""
    """Why there is no value; empty if there is one."""
    last_error: str = ""
    """The error message of the component that failed."""
    source: Provenance = Provenance.UNAVAILABLE
    scope: str = ""
    """`node` if the figure is for the whole node and not only for the job."""
    of: int = 0
    """Number of nodes or GPUs that it combines; 1 in the row of one."""
    history: tuple[TopPoint, ...] = ()
    """Oldest first, evenly spaced; gaps have no point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """All nodes, one node, or one GPU."""

    kind: RowKind
    node: str = ""
    """Empty in the summary."""
    gpu_uuid: str = ""
    age_s: float | None = None
    """Age of its newest sample; None if none is current."""
    reason: str = ""
    """Why it has no current sample, as far as known."""
    cells: tuple[TopCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopAnswer:
    """The use of one attempt. The first row is always the summary."""

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
    """By the server's clock. The values of a finished attempt are those at its end."""
    mode: TopMode
    duration_s: float | None = None
    origin: MetricOrigin
    columns: tuple[TopColumn, ...]
    rows: tuple[TopRow, ...]
    notes: tuple[str, ...] = ()
    """Notes on the whole answer, such as a component that does not answer."""
    queries: tuple[str, ...] = ()
    """The queries to the metric store, if requested."""
    sources: tuple[Source, ...] = ()
    """The source of the state, with its age."""


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
    """Return the metrics of a mode."""
    if mode is TopMode.WIDE:
        return tuple(Shown)
    return _OF_A_GPU if mode is TopMode.PER_GPU else _USUAL


def columns_of(mode: TopMode) -> tuple[TopColumn, ...]:
    """Return the columns of a mode, with units."""
    return tuple(
        TopColumn(
            metric=each,
            unit=SHOWN[each].unit,
            summing=SHOWN[each].summing,
            per_gpu=SHOWN[each].per_gpu,
        )
        for each in metrics_of(mode)
    )
