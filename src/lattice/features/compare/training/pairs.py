"""Finds where two training runs part, and what was measured there. Pure.

Two runs are compared at the epochs or steps that both have, value by value. The parting is found as
for measured metrics. A measured metric stands beside it if it parts at the same epoch, too. That
they go together is measured; that one is the cause is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lattice.domain.measured import SHOWN, Shown
from lattice.domain.statistics.divergence import LEAST, parts_at
from lattice.domain.statistics.mean_difference import Difference, paired_difference
from lattice.domain.statistics.track import Track
from lattice.features.compare.model import EpochParting, MeasuredChange, TrainingAxis
from lattice.features.compare.training.epochs import (
    EpochAxis,
    Logged,
    RunValues,
    beside,
    group_for,
    seconds_each,
)
from lattice.features.compare.verdict import change_of

Values = Sequence[float | None]
TOGETHER = 2
"""What parts within this many cells counts as simultaneous."""
_NEGLIGIBLE_PERCENT = 0.1
"""Arithmetic rounds differently on other nodes: a smaller difference is real and says nothing."""
_MOST_BESIDE = 3
NOTHING = "nothing was measured"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a run logged, and what was measured of its allocation."""

    label: str
    values: RunValues | None = None
    tracks: Mapping[Shown, Track] = field(default_factory=dict)
    unmeasured: str = ""
    """Why there are no tracks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs on one axis: each value at the cells that both have."""

    axis: TrainingAxis
    width: int
    cells: tuple[int, ...]
    logged: Mapping[str, tuple[Values, Values]]
    measured: Mapping[Shown, tuple[int, Values, Values]]
    """With the number of cells that are joined for it."""
    unmeasured: str = ""

    @property
    def tests(self) -> int:
        """How many series are tested for a parting."""
        return len(self.logged) + len(self.measured)


def seconds_name(axis: TrainingAxis) -> str:
    """Return the name of the series of times."""
    return f"seconds_per_{axis.value}"


def paired(first: LoggedRun, second: LoggedRun) -> Pair | str:
    """Lay two runs upon each other, or return why that can't be done."""
    for each in (first, second):
        if each.values is None:
            return f"nothing that {each.label} logged is known"
    most = (0, TrainingAxis.STEP)
    for kind in TrainingAxis:
        left, right = (each.values.axis(kind) if each.values else None for each in (first, second))
        if left is None or right is None:
            continue
        width = max(left.grid.width, right.grid.width)
        left, right = left.coarser(width), right.coarser(width)
        cells = sorted(left.grid.cells.keys() & right.grid.cells.keys())
        if len(cells) >= LEAST:
            measured, reason = _measured(kind, cells, (left, right), (first, second))
            logged = _logged(kind, cells, left, right)
            return Pair(kind, width, tuple(cells), logged, measured, reason)
        most = max(most, (len(cells), kind))
    count, kind = most
    name = kind.value if count == 1 else f"{kind.value}s"
    return f"both logged {count} {name} with the same numbers: it takes {LEAST}"


def _logged(
    kind: TrainingAxis, cells: Sequence[int], left: EpochAxis, right: EpochAxis
) -> dict[str, tuple[Values, Values]]:
    """The times first."""
    first, second = seconds_each(left.grid), seconds_each(right.grid)
    found: dict[str, tuple[Values, Values]] = {
        seconds_name(kind): ([first.get(at) for at in cells], [second.get(at) for at in cells])
    }
    for name, one in left.series.items():
        other = right.series.get(name)
        if other is not None:
            found[name] = (_means(one, cells), _means(other, cells))
    return found


def _means(logged: Logged, cells: Sequence[int]) -> Values:
    return [each.mean if (each := logged.cells.get(at)) is not None else None for at in cells]


def _measured(
    kind: TrainingAxis,
    cells: Sequence[int],
    axes: tuple[EpochAxis, EpochAxis],
    runs: tuple[LoggedRun, LoggedRun],
) -> tuple[dict[Shown, tuple[int, Values, Values]], str]:
    """What both have, or why there is nothing."""
    left, right = (each.grid for each in axes)
    reason = next(
        (f"{each.label}: {each.unmeasured or NOTHING}" for each in runs if not each.tracks), NOTHING
    )
    found: dict[Shown, tuple[int, Values, Values]] = {}
    for metric, track in runs[0].tracks.items():
        other = runs[1].tracks.get(metric)
        if other is None:
            continue
        step_s = max(track.step_s, other.step_s)
        group = group_for((left, right), step_s)
        if group and len(cells) // group >= LEAST:
            one, two = (
                beside(grid, own, cells, group) for grid, own in ((left, track), (right, other))
            )
            found[metric] = (group, one, two)
        else:
            reason = (
                f"measured every {step_s:.0f} s, which is too coarse for {kind.value}s so short"
            )
    return found, "" if found else reason


def parting_of(pair: Pair, name: str, tests: int) -> EpochParting | None:
    """Return where both part in a logged metric, and what was measured there."""
    left, right = pair.logged[name]
    at = parts_at(left, right, tests=tests)
    if at is None:
        return None
    since = paired_difference(left[at:], right[at:])
    if since is not None and (_includes_zero(since) or _is_negligible(since)):
        return None
    near = _measured_near(pair, at, tests)
    return EpochParting(
        at=pair.cells[at] * pair.width,
        whole=_is_first(left, right, at),
        since=change_of(since) if since is not None else None,
        beside=near,
        reason="" if near else pair.unmeasured or "no measured metric parts there",
    )


def _measured_near(pair: Pair, at: int, tests: int) -> tuple[MeasuredChange, ...]:
    found: list[tuple[float, MeasuredChange]] = []
    for metric, (group, left, right) in pair.measured.items():
        begin = parts_at(left, right, tests=tests)
        if begin is None or abs(begin * group - at) > TOGETHER * group:
            continue
        since = paired_difference(left[begin:], right[begin:])
        if since is None or _includes_zero(since) or _is_negligible(since):
            continue
        change = MeasuredChange(
            metric=metric,
            unit=SHOWN[metric].unit,
            at=pair.cells[begin * group] * pair.width,
            change=change_of(since),
        )
        clear = abs(since.absolute.value) / since.error if since.error else float("inf")
        found.append((-clear, change))
    found.sort(key=lambda each: (each[0], each[1].metric.value))
    return tuple(each for _, each in found[:_MOST_BESIDE])


def _is_first(left: Values, right: Values, at: int) -> bool:
    return not any(None not in both for both in zip(left[:at], right[:at], strict=True))


def _includes_zero(change: Difference) -> bool:
    return change.absolute.low <= 0.0 <= change.absolute.high


def _is_negligible(change: Difference) -> bool:
    return change.percent is not None and abs(change.percent.value) < _NEGLIGIBLE_PERCENT
