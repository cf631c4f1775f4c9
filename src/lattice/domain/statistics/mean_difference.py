"""The mean of a measured series with its standard error, and the difference of two means. Pure.

Neighbouring samples are correlated, so a hundred of them have less information than a hundred
independent ones. The model is an AR(1) process, with a bias-corrected estimate of its coefficient.
The error of the mean for the given length follows from it. If the means of 20 batches scatter more
than that, their scatter counts: it shows slow waves first. Gaps are left out.

The interval in percent is that of the ratio (Fieller's), because the baseline's mean is uncertain
too. It excludes zero exactly if the absolute interval does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lattice.domain.statistics import student

LEAST_SAMPLES = 8
MAX_COEFFICIENT = 0.97
"""Above this a series drifts, and no available length would determine its mean."""
_BATCHES = 20
_LEAST_FOR_BATCHES = 60
CONFIDENCE = 0.95
POWER = 0.8
_NEVER = math.inf


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
    measured = [each for each in values if each is not None]
    count = len(measured)
    if count < LEAST_SAMPLES:
        return None
    mean = math.fsum(measured) / count
    scatter = math.fsum((each - mean) ** 2 for each in measured) / count
    if scatter <= (1e-12 * mean) ** 2:
        # All equal, except for rounding.
        return MeanLevel(mean, 0.0, count - 1.0, count, float(count))
    share = ar1_coefficient(values, mean, fitted=1)
    relative = variance_of_mean(share, count)
    # The mean comes from the same samples, so they are too close to it.
    variance = scatter / (1.0 - relative) * relative
    df = max(1.0 / relative - 1.0, 1.0)
    if count >= _LEAST_FOR_BATCHES:
        of_batches = _batch_variance(measured)
        if of_batches > variance:
            variance, df = of_batches, min(df, _BATCHES - 1.0)
    return MeanLevel(mean, variance, df, count, 1.0 / relative)


def ar1_coefficient(values: Sequence[float | None], mean: float, *, fitted: int) -> float:
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
    return min(max(share, 0.0), MAX_COEFFICIENT)


def variance_of_mean(share: float, count: int) -> float:
    """Return the variance of the mean of `count` samples of an AR(1) process with variance 1."""
    if share < 1e-9:
        return 1.0 / count
    rest = 1.0 - share
    return ((1.0 + share) / rest - 2.0 * share * (1.0 - share**count) / (count * rest**2)) / count


def _batch_variance(measured: Sequence[float]) -> float:
    size = len(measured) // _BATCHES
    means = [math.fsum(measured[at * size : (at + 1) * size]) / size for at in range(_BATCHES)]
    middle = math.fsum(means) / _BATCHES
    return math.fsum((each - middle) ** 2 for each in means) / (_BATCHES - 1) / _BATCHES


@dataclass(frozen=True, slots=True)
class Bounded:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a mean from the baseline."""

    absolute: Bounded
    percent: Bounded | None
    """None if the baseline is too close to zero for a division."""
    chance: float
    """The p-value: the probability of such a difference by chance."""
    smallest: float
    """The smallest true difference that four of five such comparisons would find."""
    error: float
    df: float

    def power(self, true: float) -> float:
        """Return the probability that such a comparison finds a true difference of this size."""
        if self.error == 0.0:
            return 1.0 if true else 0.0
        far = student.quantile(0.5 + CONFIDENCE / 2, self.df)
        shift = abs(true) / self.error
        return student.cdf(shift - far, self.df) + student.cdf(-shift - far, self.df)


def difference(baseline: MeanLevel, other: MeanLevel) -> Difference:
    apart = other.mean - baseline.mean
    error, df = _error(baseline, other)
    far = student.quantile(0.5 + CONFIDENCE / 2, df)
    reach = far * error
    return Difference(
        absolute=Bounded(apart, apart - reach, apart + reach),
        percent=_percent(baseline, other, far),
        chance=_chance(apart, error, df),
        smallest=(far + student.quantile(POWER, df)) * error,
        error=error,
        df=df,
    )


def paired_difference(
    baseline: Sequence[float | None], other: Sequence[float | None]
) -> Difference | None:
    """Return the mean difference of values at the same places, or None for fewer than eight.

    A loss that falls has no level, but its distance from another one has.
    """
    pairs = [pair for pair in zip(baseline, other, strict=True) if None not in pair]
    level = level_of([second - first for first, second in pairs])  # type: ignore[operator]
    if level is None:
        return None
    error, df = math.sqrt(level.variance), math.floor(level.df * 20) / 20 or 1.0
    far = student.quantile(0.5 + CONFIDENCE / 2, df)
    absolute = Bounded(level.mean, level.mean - far * error, level.mean + far * error)
    under = math.fsum(first for first, _ in pairs) / len(pairs)  # type: ignore[misc]
    share = 100.0 / under if under > 0.0 else 0.0
    return Difference(
        absolute=absolute,
        percent=Bounded(absolute.value * share, absolute.low * share, absolute.high * share)
        if share
        else None,
        chance=_chance(level.mean, error, df),
        smallest=(far + student.quantile(POWER, df)) * error,
        error=error,
        df=df,
    )


def adjusted(chances: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm's method)."""
    order = sorted(range(len(chances)), key=lambda each: chances[each])
    found = [1.0] * len(chances)
    highest = 0.0
    for rank, each in enumerate(order):
        highest = max(highest, min(1.0, chances[each] * (len(chances) - rank)))
        found[each] = highest
    return found


def _error(first: MeanLevel, second: MeanLevel) -> tuple[float, float]:
    """Return the standard error of the difference and its degrees of freedom (Welch's)."""
    variance = first.variance + second.variance
    if variance == 0.0:
        return 0.0, _NEVER
    df = variance**2 / (first.variance**2 / first.df + second.variance**2 / second.df)
    # Rounded down: quantiles are cached, and a rounded one is never narrower.
    return math.sqrt(variance), math.floor(df * 20) / 20 or 1.0


def _chance(apart: float, error: float, df: float) -> float:
    if error == 0.0:
        return 1.0 if apart == 0.0 else 0.0
    return student.two_sided(apart / error, df)


def _percent(baseline: MeanLevel, other: MeanLevel, far: float) -> Bounded | None:
    under = baseline.mean
    if under <= 0.0:
        # No metric is negative.
        return None
    doubt = far * far * (baseline.variance / under / under)  # its square may be no number
    if doubt >= 1.0:
        return None
    ratio = other.mean / under
    inside = other.variance + ratio * ratio * baseline.variance - doubt * other.variance
    reach = far / abs(under) * math.sqrt(max(inside, 0.0))
    low, high = (ratio - reach) / (1.0 - doubt), (ratio + reach) / (1.0 - doubt)
    return Bounded(100.0 * (ratio - 1.0), 100.0 * (low - 1.0), 100.0 * (high - 1.0))
