"""Sparklines and bars with a fixed scale of 0 to 100, so that they can be compared. Pure.

The height of a cell is the highest value of its interval, its colour the mean. The last cell is the
newest value, the number beside it. No cell is a full block, so that lines stay separate. A cell
without samples is blank, and a line without any value says so. GPUs and hosts have different glyphs
and colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NO_DATA = "no data"
Point = tuple[float, float]
"""A time, and a share in percent."""
Piece = tuple[str, str]
"""Text, and its style: names of `lattice.base.style`."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """Glyphs from low to high, their ASCII forms, and colours from low to high."""

    glyphs: str
    plain: str
    colours: tuple[str, ...]


GPU = Ramp("▁▂▃▄▅▆▇", "_.-=+*#", ("blue", "cyan", "green"))
HOST = Ramp("⡀⣀⣄⣤⣦⣶⣷", ",:;!|%&", ("dim", "yellow", "red"))


def level(share: float, ramp: Ramp) -> int:
    """Return the index of the glyph for a share. Raises `ValueError` for NaN and infinity."""
    if not math.isfinite(share):
        raise ValueError("what was not measured has no height")
    steps = len(ramp.glyphs)
    return min(steps - 1, max(0, int(share / 100 * steps)))


def spark(points: Sequence[Point], width: int, ramp: Ramp, *, glyphs: bool = True) -> list[Piece]:
    """Return a line of `width` cells, oldest first; the last cell is the newest point alone."""
    if not points or width < 1:
        return [(NO_DATA[:width].ljust(width), "dim")]
    letters = ramp.glyphs if glyphs else ramp.plain
    *earlier, newest = points
    cells: list[Piece] = []
    for stretch in _stretches(earlier, newest[0], width - 1):
        if not stretch:
            cells.append((" ", ""))
            continue
        mean = math.fsum(stretch) / len(stretch)
        cells.append((letters[level(max(stretch), ramp)], _colour(mean, ramp)))
    cells.append((letters[level(newest[1], ramp)], _colour(newest[1], ramp)))
    return cells


def bar(share: float | None, width: int, ramp: Ramp, *, glyphs: bool = True) -> list[Piece]:
    """Return a bar such as `━━━━────`, blank for an unknown share."""
    if width < 1:
        return []
    full, rest = ("━", "─") if glyphs else ("#", "-")
    if share is None:
        return [(" " * width, "")]
    filled = min(width, max(0, round(share / 100 * width)))
    parts = [(full * filled, _colour(share, ramp)), (rest * (width - filled), "dim")]
    return [each for each in parts if each[0]]


def _stretches(points: Sequence[Point], end: float, count: int) -> list[list[float]]:
    """Split the values into `count` equal intervals that end at `end`."""
    found: list[list[float]] = [[] for _ in range(count)]
    if not points or not count:
        return found
    # No finer than the points; a short history fills only the right end of the line.
    apart = max((end - points[0][0]) / count, _usual_gap(points, end))
    for time, share in points:
        index = count - 1 - int((end - time - apart / 2) / apart)
        if 0 <= index < count:
            found[index].append(share)
    return found


def _usual_gap(points: Sequence[Point], end: float) -> float:
    times = [*(time for time, _ in points), end]
    gaps = sorted(later - sooner for sooner, later in pairwise(times))
    return max(gaps[len(gaps) // 2], 1e-3)


def _colour(share: float, ramp: Ramp) -> str:
    steps = len(ramp.colours)
    return ramp.colours[min(steps - 1, max(0, int(share / 100 * steps)))]
