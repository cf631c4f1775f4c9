"""Series of unequal lengths and resolutions on one grid, each from the start of its run. Pure.

A cell stands for a stretch of time: cell 0 for the first. What was not measured is a hole, on every
grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LEAST_SHARE = 0.5
"""Of a cell that has to be measured for it to have a mean."""


@dataclass(frozen=True, slots=True)
class Track:
    """One metric of one run, in stretches of equal length from its start on."""

    step_s: float
    values: tuple[float | None, ...]

    @property
    def measured(self) -> int:
        """How many cells have a number."""
        return sum(each is not None for each in self.values)

    @property
    def begins_s(self) -> float | None:
        """Where the first cell with a number begins; None: none has one."""
        found = (at for at, each in enumerate(self.values) if each is not None)
        first = next(found, None)
        return None if first is None else first * self.step_s

    @property
    def length_s(self) -> float:
        return self.step_s * len(self.values)


def track_of(points: Iterable[tuple[float, float]], step_s: float, length_s: float) -> Track:
    """Of (seconds since the start, value): each is about the moment it names."""
    count = max(1, math.ceil(length_s / step_s - 1e-9))
    cells: list[list[float]] = [[] for _ in range(count)]
    for moment_s, value in points:
        at = math.floor(moment_s / step_s)
        if 0 <= at < count and math.isfinite(value):
            cells[at].append(value)
    return Track(step_s, tuple(math.fsum(each) / len(each) if each else None for each in cells))


def on_grid(track: Track, step_s: float) -> Track:
    """The same in longer stretches; one of which less than half was measured is a hole."""
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
    """All on the coarsest of their grids; their lengths stay their own."""
    known = tuple(tracks)
    step_s = max((each.step_s for each in known), default=1.0)
    return tuple(on_grid(each, step_s) for each in known)
