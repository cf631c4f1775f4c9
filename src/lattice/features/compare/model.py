"""Requests and answers of a comparison. Pure.

The first run is the baseline; every other is compared with it. A number that was not measured is
None, with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lattice.base.errors import UsageError
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.domain.statistics.sureness import Sureness
from lattice.domain.telemetry import MetricOrigin

FEWEST_RUNS, MOST_RUNS = 2, 8
CONFIDENCE_PERCENT = 95
POWER_PERCENT = 80
PLOT_POINTS = 120
"""Most points per run and metric in an answer."""
USUAL = (
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


class Align(StrEnum):
    """How runs are aligned in time."""

    RELATIVE = "relative"
    """The start of each attempt is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery:
    """Two runs or more; without metrics the default ones."""

    ids: tuple[str, ...]
    metrics: tuple[Shown, ...] = ()
    align: Align = Align.RELATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run of a comparison."""

    label: str
    """`A` is the baseline, then `B`, `C`, …"""
    allocation: str
    id: str
    name: str
    user: str
    attempt: int
    attempts: int
    state: State
    nodes: str
    node_count: int
    started: datetime
    ended: datetime | None
    """None while it runs."""
    length_s: float
    origin: MetricOrigin
    kept: datetime | None = None
    """When its summary was written, if the numbers come from the stored summary."""
    job_id: int = 0
    cluster: str = ""
    submitted: datetime | None = None
    """When it was first submitted. Training runs are found by these three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLevel:
    """The mean of one metric of one run in its steady state."""

    mean: float | None = None
    reason: str = ""
    """Why there is no mean."""
    warm_up_s: float | None = None
    """Length of the warm-up, which is left out; None if no steady state was found."""
    unsteady: str = ""
    """Why no steady state was found; then the mean is over the whole run."""
    samples: int = 0
    effective_samples: float | None = None
    """The number of independent samples with the same information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference from the baseline with its 95 % interval, absolute and in percent."""

    absolute: float
    absolute_low: float
    absolute_high: float
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    """None if the baseline is zero or can't be distinguished from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """When two runs diverged in one metric."""

    at_s: float
    """Since the start of each."""
    whole: bool
    """True if they differ all the time that can be compared."""
    since: Change | None = None
    """The difference from then on, over the time that both have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """One metric of one run against the baseline."""

    label: str
    change: Change | None = None
    """Difference of the steady means."""
    reason: str = ""
    """Why there is no difference."""
    sureness: Sureness = Sureness.UNKNOWN
    smallest: float | None = None
    """80 of 100 such comparisons would find a true difference of this size."""
    smallest_percent: float | None = None
    parting: Parting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoint:
    """The mean over an interval; an interval without samples has no point."""

    at_s: float
    """The middle of the interval, since the start of the run."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """The points of one run in a plot."""

    label: str
    step_s: float
    points: tuple[ComparePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric of all runs; `levels` and `lines` in the order of the runs."""

    metric: Shown
    unit: str
    levels: tuple[RunLevel, ...]
    differences: tuple[RunDifference, ...]
    """One per run except the baseline."""
    lines: tuple[RunLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstParting:
    """The metrics in which a run first diverged from the baseline; several if at the same time."""

    label: str
    at_s: float
    metrics: tuple[Shown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingValue:
    """The value of one run; None if it is unknown, with the reason."""

    value: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One requested or granted property of all runs, in their order."""

    name: str
    values: tuple[SettingValue, ...]
    differs: bool


class TrainingAxis(StrEnum):
    """What training runs are laid upon each other by."""

    EPOCH = "epoch"
    """Both log a metric `epoch`."""
    STEP = "step"
    """The steps that the values were logged with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTraining:
    """The training run of one allocation, as its run store has it."""

    label: str
    id: str = ""
    name: str = ""
    experiment: str = ""
    status: str = ""
    reason: str = ""
    """Why there is none, or why nothing of it can be compared."""
    others: int = 0
    """Further runs of the allocation, which are not compared."""
    epochs: int | None = None
    """None if it logs no metric `epoch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChange:
    """A measured metric that changed at the same epoch as a logged one."""

    metric: Shown
    unit: str
    at: int
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochParting:
    """Where two trainings parted in one logged metric."""

    at: int
    """The epoch or the step."""
    whole: bool
    """True if they differ from the first one on."""
    since: Change | None = None
    beside: tuple[MeasuredChange, ...] = ()
    """What was measured and parted there, too, the clearest first."""
    reason: str = ""
    """Why nothing measured stands beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDifference:
    """One logged metric of one run against the baseline, where both have the same epochs."""

    label: str
    axis: TrainingAxis | None = None
    baseline: float | None = None
    """The baseline's mean over what both have."""
    value: float | None = None
    change: Change | None = None
    """Over all that both have."""
    reason: str = ""
    """Why there is no difference."""
    sureness: Sureness = Sureness.UNKNOWN
    parting: EpochParting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPoint:
    at: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLine:
    """The values of one run over its epochs or steps."""

    label: str
    axis: TrainingAxis | None
    points: tuple[LoggedPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedComparison:
    """One logged metric of all runs, or the time that an epoch or a step took."""

    name: str
    unit: str
    """`s` for times that follow from the moments of logging; the store knows no units."""
    differences: tuple[LoggedDifference, ...]
    """One per run except the baseline."""
    lines: tuple[LoggedLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParting:
    """The logged metrics in which a run first parted from the baseline."""

    label: str
    axis: TrainingAxis
    at: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingComparison:
    """The training runs of the allocations, on one axis with what was measured."""

    runs: tuple[ComparedTraining, ...]
    parameters: tuple[Setting, ...] = ()
    """Those that differ."""
    metrics: tuple[LoggedComparison, ...] = ()
    partings: tuple[TrainingParting, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer of a comparison."""

    taken: datetime
    align: Align
    runs: tuple[ComparedRun, ...]
    metrics: tuple[MetricComparison, ...]
    partings: tuple[FirstParting, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()
    trainings: TrainingComparison | None = None
    """None if the site has no run store."""


def metrics_named(texts: tuple[str, ...]) -> tuple[Shown, ...]:
    """Return the metrics in comma-separated texts. Raises `UsageError`."""
    found: list[Shown] = []
    for word in (each.strip() for text in texts for each in text.split(",")):
        if not word:
            continue
        try:
            metric = Shown(word)
        except ValueError:
            there = ", ".join(each.value for each in Shown)
            raise UsageError(f"{word!r} is no metric.", hint=f"There are {there}.") from None
        if metric not in found:
            found.append(metric)
    return tuple(found)
