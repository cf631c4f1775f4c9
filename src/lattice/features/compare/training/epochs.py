"""Puts logged values on the epochs or steps of a run, and measured series beside them. Pure.

The metric `epoch` says which steps are of which epoch. A cell is an epoch or a step. In a long run
it is 2, 4, 8, … of them, so that the cells of two runs can be joined. A cell ends with the last
value of its metric. When the first one began is not known: it has no length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean, median

from lattice.domain.nodejobs import CLOCK_SLACK_S
from lattice.domain.statistics.track import Track
from lattice.domain.training_run import RunPoint
from lattice.features.compare.model import TrainingAxis
from lattice.features.compare.training.choice import is_epoch

MOST_CELLS = 4096
_LEAST_SHARE = 0.5
"""Share of a cell's samples that must be there for it to have a mean."""
_SLACK = timedelta(seconds=CLOCK_SLACK_S)


@dataclass(frozen=True, slots=True)
class Cell:
    """The values of one or several epochs or steps."""

    total: float
    count: int
    last_s: float
    """When the last one was logged, since the start of the attempt."""

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass(frozen=True, slots=True)
class Logged:
    """One metric, by number of the cell, in ascending order."""

    width: int
    cells: Mapping[int, Cell]

    def coarser(self, width: int) -> Logged:
        """Join cells; `width` is this one's times a power of two."""
        joined: dict[int, Cell] = {}
        for at, cell in self.cells.items():
            _join(joined, at * self.width // width, cell)
        return Logged(width, joined)

    def at_most(self, count: int) -> Logged:
        """Join cells until there are no more than these."""
        found = self
        while len(found.cells) > count:
            found = found.coarser(2 * found.width)
        return found


@dataclass(frozen=True, slots=True)
class EpochAxis:
    """A run by its epochs, or by its steps."""

    grid: Logged
    """Of the metric whose times are those of the cells."""
    series: Mapping[str, Logged]

    def coarser(self, width: int) -> EpochAxis:
        """Join cells of all."""
        series = {name: each.coarser(width) for name, each in self.series.items()}
        return EpochAxis(self.grid.coarser(width), series)


class RunValues:
    """The logged values of one run, during one attempt. The metric `epoch` is added first."""

    def __init__(self, started: datetime, ended: datetime | None) -> None:
        self._started, self._ended = started, ended
        self._steps: list[int] = []
        self._epochs: list[int] = []
        self._grid: Logged | None = None
        self._series: dict[TrainingAxis, dict[str, Logged]] = {each: {} for each in TrainingAxis}
        self.once: dict[str, float] = {}
        """Metrics with one value only."""

    def add(self, name: str, points: Iterable[RunPoint]) -> None:
        """Keep what was logged during the attempt, in bounded form."""
        own = [each for each in points if self._is_within(each.time)]
        if is_epoch(name):
            self._add_epochs(own)
        elif len(own) == 1:
            self.once[name] = own[0].value
        elif own:
            by_step = self._gathered((each.step, each) for each in own)
            self._series[TrainingAxis.STEP][name] = by_step
            if self._grid is not None:
                placed = ((at, each) for each in own if (at := self._epoch(each.step)) is not None)
                self._series[TrainingAxis.EPOCH][name] = self._gathered(placed)

    def axis(self, kind: TrainingAxis) -> EpochAxis | None:
        """Return the run on this axis; None if it has none."""
        series, grid = self._series[kind], self._grid
        if kind is TrainingAxis.STEP:
            grid = max(series.values(), key=lambda each: len(each.cells) * each.width, default=None)
        if grid is None:
            return None
        width = max((each.width for each in series.values()), default=grid.width)
        return EpochAxis(grid, series).coarser(max(width, grid.width))

    @property
    def epochs(self) -> int | None:
        """How many epochs it has logged; None if it logs none."""
        return len(set(self._epochs)) if self._grid is not None else None

    def _add_epochs(self, points: Sequence[RunPoint]) -> None:
        by_step = {each.step: math.floor(each.value) for each in points if abs(each.value) < 2**53}
        if not by_step:
            return
        self._steps = sorted(by_step)
        self._epochs = [by_step[each] for each in self._steps]
        placed = ((by_step[each.step], each) for each in points if each.step in by_step)
        self._grid = self._gathered(placed)

    def _epoch(self, step: int) -> int | None:
        at = bisect_left(self._steps, step)
        return self._epochs[at] if at < len(self._steps) else None

    def _is_within(self, time: datetime) -> bool:
        until = self._ended
        return self._started - _SLACK <= time and (until is None or time <= until + _SLACK)

    def _gathered(self, placed: Iterable[tuple[int, RunPoint]]) -> Logged:
        cells: dict[int, Cell] = {}
        for at, point in placed:
            at_s = (point.time - self._started).total_seconds()
            _join(cells, at, Cell(point.value, 1, at_s))
        ordered = dict(sorted(cells.items()))
        return Logged(1, ordered).at_most(MOST_CELLS)


def _join(cells: dict[int, Cell], at: int, cell: Cell) -> None:
    known = cells.get(at)
    if known is not None:
        last_s = max(known.last_s, cell.last_s)
        cell = Cell(known.total + cell.total, known.count + cell.count, last_s)
    cells[at] = cell


def seconds_each(grid: Logged) -> dict[int, float]:
    """Return the time of one epoch or step, by cell; none for the first."""
    return {
        at: (end_s - begin_s) / ((at - before) * grid.width)
        for (before, at), (begin_s, end_s) in _windows(grid)
        if end_s > begin_s
    }


def beside(grid: Logged, track: Track, cells: Sequence[int], group: int) -> list[float | None]:
    """Return the means of a measured series over each `group` of these cells."""
    windows = {at: window for (_, at), window in _windows(grid)}
    found = []
    for first in range(0, len(cells) - group + 1, group):
        own = [windows[each] for each in cells[first : first + group] if each in windows]
        found.append(_mean(track, own[0][0], own[-1][1]) if own else None)
    return found


def group_for(grids: Sequence[Logged], step_s: float) -> int:
    """Return how many cells must be joined to be as long as a measured interval; 0: unknown."""
    lengths = []
    for grid in grids:
        own = [end_s - begin_s for _, (begin_s, end_s) in _windows(grid)]
        lengths.append(median(own) if own else 0.0)
    shortest_s = min(lengths, default=0.0)
    return math.ceil(step_s / shortest_s) if shortest_s > 0.0 else 0


def _windows(grid: Logged) -> list[tuple[tuple[int, int], tuple[float, float]]]:
    """Each cell with the one before it, and when both ended."""
    numbers = sorted(grid.cells)
    return [
        ((before, at), (grid.cells[before].last_s, grid.cells[at].last_s))
        for before, at in pairwise(numbers)
    ]


def _mean(track: Track, begin_s: float, end_s: float) -> float | None:
    """Of the samples whose middle is between these."""
    first = max(math.ceil(begin_s / track.step_s - 0.5), 0)
    last = min(math.ceil(end_s / track.step_s - 0.5), len(track.values))
    values = [each for each in track.values[first:last] if each is not None]
    return fmean(values) if values and len(values) >= _LEAST_SHARE * (last - first) else None
