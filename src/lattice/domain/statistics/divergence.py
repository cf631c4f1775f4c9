"""When two runs diverge: the first time from which their difference has another level. Pure.

The difference of two aligned runs has one level until they diverge and another after it, with AR(1)
noise. Every time is tried as that of the step. The Prais-Winsten transformation removes the
correlation first. So a step is found where it is, and a slow wave does not count as one. The best
try must be unlikely among all of them. A single outlier is no step: the medians before and after
must differ too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from lattice.domain.statistics import student
from lattice.domain.statistics.mean_difference import ar1_coefficient, level_of

SURE = 0.01
"""Probability of a false alarm over all tests together."""
_EDGE = 3
_FITTED = 4
"""Fitting two levels and a time makes neighbours appear less correlated than they are."""
_AGAIN = 0.2
"""Tests after the first step are stricter, because they would move the time."""
LEAST = 10
"""Values that two series must have in common."""
_PERSISTS = 0.5
_LEAST_DF = 3.0
"""With fewer, not even a difference of hundreds of standard errors would count."""


@dataclass(frozen=True, slots=True)
class _Step:
    at: int
    chance: float


def parts_at(
    baseline: Sequence[float | None], other: Sequence[float | None], *, tests: int = 1
) -> int | None:
    """Return the cell from which they differ, the first one if they always do, or None.

    `tests` is the number of such tests in the comparison.
    """
    apart = [
        (at, second - first)
        for at, (first, second) in enumerate(zip(baseline, other, strict=False))
        if first is not None and second is not None
    ]
    if len(apart) < LEAST:
        return None
    values = [each for _, each in apart]
    chance = SURE / max(tests, 1)
    step = first_step(values, chance)
    if _is_away(values if step is None else values[:step], chance * _AGAIN):
        return apart[0][0]
    return None if step is None else apart[step][0]


def _is_away(values: Sequence[float], chance: float) -> bool:
    level = level_of(values)
    if level is None:
        return False
    if level.variance == 0.0:
        return level.mean != 0.0
    # In the far tail the uncertainty of the correlation matters more.
    df = max(level.df / 2, _LEAST_DF)
    return student.two_sided(level.mean / math.sqrt(level.variance), df) < chance


def first_step(values: Sequence[float], chance: float) -> int | None:
    """Return the earliest step in the level of a series with a p-value below `chance`."""
    found = None
    while len(values) >= LEAST:
        step = _largest_step(values)
        if step.chance >= chance:
            break
        found = step.at
        values = values[:found]
        chance *= _AGAIN
    return found


def _largest_step(values: Sequence[float]) -> _Step:
    at = _plain_step(values)
    size = gain = left = 0.0
    for _ in range(2):
        before, after = fmean(values[:at]), fmean(values[at:])
        rest = [each - (before if number < at else after) for number, each in enumerate(values)]
        share = ar1_coefficient(rest, 0.0, fitted=_FITTED)
        at, size, gain, left = _whitened_step(values, share)
    change = median(values[at:]) - median(values[:at])
    if gain <= 0.0 or change * size <= 0.0 or abs(change) < _PERSISTS * abs(size):
        return _Step(at, 1.0)
    df = len(values) - 4
    if left <= 1e-12 * gain:
        return _Step(at, 0.0)
    return _Step(at, min(1.0, len(values) * student.two_sided(math.sqrt(gain * df / left), df)))


def _plain_step(values: Sequence[float]) -> int:
    """Return where two means fit best, without regard to correlation."""
    count, mean = len(values), fmean(values)
    total, best, where = 0.0, -1.0, _EDGE
    for at in range(1, count - _EDGE + 1):
        total += values[at - 1] - mean
        gain = total * total / (at * (count - at))
        if at >= _EDGE and gain > best:
            best, where = gain, at
    return where


def _whitened_step(values: Sequence[float], share: float) -> tuple[int, float, float, float]:
    """Return where a step fits best, its size, and the variation it explains and leaves."""
    count, first, rest = len(values), math.sqrt(1.0 - share * share), 1.0 - share
    middle = fmean(values)
    centred = [each - middle for each in values]
    white = [centred[0] * first, *(now - share * then for then, now in zip(centred, centred[1:]))]  # noqa: B905, RUF007
    level = first * first + rest * rest * (count - 1)
    along = first * white[0] + rest * math.fsum(white[1:])
    whole = math.fsum(each * each for each in white) - along * along / level
    behind = 0.0
    best = (_EDGE, 0.0, 0.0)
    for at in range(count - 1, 0, -1):
        if _EDGE <= at <= count - _EDGE:
            more = count - 1 - at
            with_level = rest + rest * rest * more
            over = white[at] + rest * behind - with_level * along / level
            under = 1.0 + rest * rest * more - with_level * with_level / level
            if under > 1e-12 and over * over / under >= best[2]:
                best = (at, over / under, over * over / under)
        behind += white[at]
    return (*best, max(whole - best[2], 0.0))
