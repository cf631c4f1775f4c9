"""How well the mean of a measured series is known. Pure.

Neighbouring samples resemble each other, so a hundred of them say less than a hundred draws would.
The likeness is taken as that of a process that keeps a share of its last deviation (AR(1)); the
share is estimated with its known bias put right, and the error of the mean follows from it for the
length at hand. Where the means of a twentieth each scatter more than that, their scatter counts:
slow waves are seen there first. Holes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8
MOST_KEPT = 0.97
"""Beyond it a series wanders rather than returns, and no length at hand would tell its mean."""
_BATCHES = 20
_LEAST_FOR_BATCHES = 60


@dataclass(frozen=True, slots=True)
class Level:
    """A mean, the square of its standard error, and what that rests on."""

    mean: float
    variance: float
    df: float
    samples: int
    effective: float
    """As many independent draws would say as much."""


def level_of(values: Sequence[float | None]) -> Level | None:
    """Of samples that are evenly spaced; None for fewer than eight."""
    told = [each for each in values if each is not None]
    count = len(told)
    if count < LEAST_SAMPLES:
        return None
    mean = math.fsum(told) / count
    scatter = math.fsum((each - mean) ** 2 for each in told) / count
    if scatter <= (1e-12 * mean) ** 2:
        # All alike, but for the last digits of a float.
        return Level(mean, 0.0, count - 1.0, count, float(count))
    share = kept_share(values, mean, fitted=1)
    relative = variance_of_mean(share, count)
    # The mean was taken from the same samples, so they lie too close to it.
    variance = scatter / (1.0 - relative) * relative
    df = max(1.0 / relative - 1.0, 1.0)
    if count >= _LEAST_FOR_BATCHES:
        of_batches = _batch_variance(told)
        if of_batches > variance:
            variance, df = of_batches, min(df, _BATCHES - 1.0)
    return Level(mean, variance, df, count, 1.0 / relative)


def kept_share(values: Sequence[float | None], mean: float, *, fitted: int) -> float:
    """Which share of a deviation the next sample keeps, 0 to `MOST_KEPT`.

    `fitted` levels were taken from the samples; each makes the plain estimate too low.
    """
    square = products = 0.0
    count = pairs = 0
    before: float | None = None
    for each in values:
        now = None if each is None else each - mean
        if now is not None:
            square += now * now
            count += 1
            if before is not None:
                products += now * before
                pairs += 1
        before = now
    if not pairs or square <= 0.0:
        return 0.0
    plain = products / pairs / (square / count)
    share = plain + fitted * (1.0 + 3.0 * plain) / count
    return min(max(share, 0.0), MOST_KEPT)


def variance_of_mean(share: float, count: int) -> float:
    """Of an AR(1) process with variance 1, for that many samples."""
    if share < 1e-9:
        return 1.0 / count
    rest = 1.0 - share
    return ((1.0 + share) / rest - 2.0 * share * (1.0 - share**count) / (count * rest**2)) / count


def _batch_variance(told: Sequence[float]) -> float:
    size = len(told) // _BATCHES
    means = [math.fsum(told[at * size : (at + 1) * size]) / size for at in range(_BATCHES)]
    middle = math.fsum(means) / _BATCHES
    return math.fsum((each - middle) ** 2 for each in means) / (_BATCHES - 1) / _BATCHES
