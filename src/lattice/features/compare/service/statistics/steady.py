"""Where a run has warmed up, and whether it stays as it is then. Pure.

The second half of a run says what is usual: its median, and how far samples lie from it. Warm-up is
what comes before the first stretch that lies within that. Medians, so that a single odd sample is
neither the end of a warm-up nor the width of what is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from lattice.features.compare.service.statistics.means import LEAST_SAMPLES
from lattice.features.compare.service.statistics.parting import first_step

_LEAST = 2 * LEAST_SAMPLES
_FAR, _NEAR = 4.0, 2.5
"""In usual distances: a run that begins within the first has no warm-up; one that has is warm once
within the second."""
_FEW = 40
"""Samples that resemble each other wander further than a few of them tell: then far is farther."""
_STRETCH = 5
_CHANGED = 0.001
"""Asked of every metric of every run, and a false alarm would be a note that misleads."""
TOO_SHORT = "too short to tell a warm-up from the rest"
NEVER = "the first half never comes to where the second is"
CHANGES = "its level changes on the way"


@dataclass(frozen=True, slots=True)
class Steady:
    """From which sample on; with a `reason` where what follows is no steady state."""

    begins: int
    reason: str = ""

    @property
    def found(self) -> bool:
        return not self.reason


def steady_from(values: Sequence[float | None]) -> Steady:
    """Of samples that are evenly spaced."""
    told = [(at, each) for at, each in enumerate(values) if each is not None]
    if len(told) < _LEAST:
        return Steady(0, TOO_SHORT)
    half = len(told) // 2
    centre, spread = _usual([each for _, each in told[half:]])
    begins = _entered([each for _, each in told], half, centre, spread)
    if begins is None:
        return Steady(0, NEVER)
    if first_step([each for _, each in told[begins:]], _CHANGED) is not None:
        return Steady(told[begins][0], CHANGES)
    return Steady(told[begins][0])


def _usual(values: Sequence[float]) -> tuple[float, float]:
    centre = median(values)
    apart = [abs(each - centre) for each in values]
    # Where more than half are exactly alike, the others still say how far is usual.
    spread = 1.4826 * median(apart) or 1.2533 * fmean(apart)
    return centre, spread + 1e-9 * abs(centre)


def _entered(values: Sequence[float], half: int, centre: float, spread: float) -> int | None:
    far = _FAR * (1.0 + _FEW / len(values))
    if abs(median(values[:_STRETCH]) - centre) <= far * spread:
        return 0
    width = _NEAR * spread
    for at in range(half):
        if abs(median(values[at : at + _STRETCH]) - centre) <= width:
            while abs(values[at] - centre) > width:
                at += 1  # noqa: PLW2901 - the stretch is in, its first samples may not be
            return at
    return None
