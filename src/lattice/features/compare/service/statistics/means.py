"""The standard error of the mean of a measured series. Pure.

Neighbouring samples are correlated, so a hundred of them have less information than a hundred
independent ones. The model is an AR(1) process, with a bias-corrected estimate of its coefficient.
The error of the mean for the given length follows from it. If the means of 20 batches scatter more
than that, their scatter counts: it shows slow waves first. Gaps are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SAMPLES = 8
MOST_KEPT = 0.97
"""Above this a series drifts, and no available length would determine its mean."""
_BATCHES = 20
_LEAST_FOR_BATCHES = 60


@dataclass(frozen=True, slots=True)
class MeanLevel:
    """A mean, the square of its standard error, and their basis."""

    mean: float
    variance: float
    df: float
    samples: int
    effective: float
    """The number of independent samples with the same information."""


def level_of(values: Sequence[float | None]) -> MeanLevel | None:
    """Return the mean of evenly spaced samples, or None for fewer than eight."""
    told = [each for each in values if each is not None]
    count = len(told)
    if count < LEAST_SAMPLES:
        return None
    mean = math.fsum(told) / count
    scatter = math.fsum((each - mean) ** 2 for each in told) / count
    if scatter <= (1e-12 * mean) ** 2:
        # All equal, except for rounding.
        return MeanLevel(mean, 0.0, count - 1.0, count, float(count))
    share = kept_share(values, mean, fitted=1)
    relative = variance_of_mean(share, count)
    # The mean comes from the same samples, so they are too close to it.
    variance = scatter / (1.0 - relative) * relative
    df = max(1.0 / relative - 1.0, 1.0)
    if count >= _LEAST_FOR_BATCHES:
        of_batches = _batch_variance(told)
        if of_batches > variance:
            variance, df = of_batches, min(df, _BATCHES - 1.0)
    return MeanLevel(mean, variance, df, count, 1.0 / relative)


def kept_share(values: Sequence[float | None], mean: float, *, fitted: int) -> float:
    """Return the share of a deviation that the next sample keeps, 0 to `MOST_KEPT`.

    `fitted` is the number of levels fitted to the samples; each lowers the plain estimate.
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
    """Return the variance of the mean of `count` samples of an AR(1) process with variance 1."""
    if share < 1e-9:
        return 1.0 / count
    rest = 1.0 - share
    return ((1.0 + share) / rest - 2.0 * share * (1.0 - share**count) / (count * rest**2)) / count


def _batch_variance(told: Sequence[float]) -> float:
    size = len(told) // _BATCHES
    means = [math.fsum(told[at * size : (at + 1) * size]) / size for at in range(_BATCHES)]
    middle = math.fsum(means) / _BATCHES
    return math.fsum((each - middle) ** 2 for each in means) / (_BATCHES - 1) / _BATCHES
