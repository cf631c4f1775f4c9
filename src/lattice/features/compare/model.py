"""What is asked of a comparison, and what it answers. Pure.

The first run is the baseline; every other is compared with it. A number that nobody measured is
None, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lattice.base.errors import UsageError
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.domain.telemetry import MetricOrigin

FEWEST_RUNS, MOST_RUNS = 2, 8
CONFIDENCE_PERCENT = 95
POWER_PERCENT = 80
PLOT_POINTS = 120
"""At most so many points a run and metric cross the wire."""
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
    """What is laid upon what."""

    RELATIVE = "relative"
    """The start of each attempt is 0."""


class Sureness(StrEnum):
    """How sure it is that there is a difference at all."""

    SURE = "sure"
    """Less than 1 in 100 comparisons like this whole one would show such without a cause."""
    LIKELY = "likely"
    """Less than 1 in 20."""
    PERHAPS = "perhaps"
    """Its own interval leaves zero out, but among so many metrics one such is to be expected."""
    NONE_FOUND = "none found"
    """Which is not the same as none: see the smallest that would be found."""
    UNKNOWN = "unknown"
    """There is nothing to judge by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery:
    """Two runs or more; no metrics: the usual ones."""

    ids: tuple[str, ...]
    metrics: tuple[Shown, ...] = ()
    align: Align = Align.RELATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of them."""

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
    """When its summary was written, where the numbers come from that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLevel:
    """The mean of one metric of one run in its steady state."""

    mean: float | None = None
    reason: str = ""
    """Why there is none."""
    warm_up_s: float | None = None
    """What was left out at its beginning; None where no steady state was found."""
    unsteady: str = ""
    """Why no steady state was found; the mean is of the whole run then."""
    samples: int = 0
    effective_samples: float | None = None
    """As many independent ones would say as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference from the baseline with its 95 % interval, absolute and in percent."""

    absolute: float
    absolute_low: float
    absolute_high: float
    percent: float | None = None
    percent_low: float | None = None
    percent_high: float | None = None
    """None where the baseline is zero, or not told apart from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """When two runs parted in one metric."""

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
    """Of the steady means."""
    reason: str = ""
    """Why there is none."""
    sureness: Sureness = Sureness.UNKNOWN
    smallest: float | None = None
    """A true difference of this size would be found in 80 of 100 comparisons like this one."""
    smallest_percent: float | None = None
    parting: Parting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePoint:
    """The mean over a stretch; where nothing was measured there is no point."""

    at_s: float
    """The middle of the stretch, since the start of the run."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """What a plot shows of one run."""

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
    """One a run but the baseline."""
    lines: tuple[RunLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstParting:
    """What parted first between a run and the baseline; several if at the same time."""

    label: str
    at_s: float
    metrics: tuple[Shown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingValue:
    """Of one run; None: nobody has said, with the reason."""

    value: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that was asked for or given, of all runs in their order."""

    name: str
    values: tuple[SettingValue, ...]
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole answer."""

    taken: datetime
    align: Align
    runs: tuple[ComparedRun, ...]
    metrics: tuple[MetricComparison, ...]
    partings: tuple[FirstParting, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...] = ()


def metrics_named(words: tuple[str, ...]) -> tuple[Shown, ...]:
    """The metrics of these words, commas between some of them. Raises `UsageError`."""
    found: list[Shown] = []
    for word in (each.strip() for text in words for each in text.split(",")):
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
