"""Puts series of different lengths and resolutions on one grid, from the start of each run. Pure.

Cell 0 is the first interval of a run. A cell without samples is a gap, on every grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LEAST_SHARE = 0.5
"""Share of a cell that must be measured for it to have a mean."""


@dataclass(frozen=True, slots=True)
class Track:
    """One metric of one run, in intervals of equal length from its start."""

    step_s: float
    values: tuple[float | None, ...]

    @property
    def measured(self) -> int:
        """Number of cells with a value."""
        return sum(each is not None for each in self.values)

    @property
    def begins_s(self) -> float | None:
        """Start of the first cell with a value; None without any."""
        found = (at for at, each in enumerate(self.values) if each is not None)
        first = next(found, None)
        return None if first is None else first * self.step_s

    @property
    def length_s(self) -> float:
        return self.step_s * len(self.values)


def track_of(points: Iterable[tuple[float, float]], step_s: float, length_s: float) -> Track:
    """Build a track from (seconds since the start, value)."""
    count = max(1, math.ceil(length_s / step_s - 1e-9))
    cells: list[list[float]] = [[] for _ in range(count)]
    for moment_s, value in points:
        at = math.floor(moment_s / step_s)
        if 0 <= at < count and math.isfinite(value):
            cells[at].append(value)
    return Track(step_s, tuple(math.fsum(each) / len(each) if each else None for each in cells))


def on_grid(track: Track, step_s: float) -> Track:
    """Resample to longer intervals; a cell that is measured less than half is a gap."""
    if step_s <= track.step_s:
        return track
    count = max(1, math.floor(track.length_s / step_s + 1e-9))
    cells: list[list[float]] = [[] for _ in range(count)]
    had = [0] * count
    for at, value in enumerate(track.values):
        cell = math.floor((at + 0.5) * track.step_s / step_s)
        if cell >= count:
            break
        had[cell] += 1
        if value is not None:
            cells[cell].append(value)
    return Track(
        step_s,
        tuple(
            math.fsum(each) / len(each) if each and len(each) >= _LEAST_SHARE * of else None
            for each, of in zip(cells, had, strict=True)
        ),
    )


def together(tracks: Iterable[Track]) -> tuple[Track, ...]:
    """Resample all to the coarsest of their grids; each keeps its own length."""
    known = tuple(tracks)
    step_s = max((each.step_s for each in known), default=1.0)
    return tuple(on_grid(each, step_s) for each in known)
