"""The difference of two means: its size, its interval, and the detectable size. Pure.

The interval in percent is that of the ratio (Fieller's), because the baseline's mean is uncertain
too. It excludes zero exactly if the absolute interval does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lattice.features.compare.service.statistics import student
from lattice.features.compare.service.statistics.means import MeanLevel

CONFIDENCE = 0.95
POWER = 0.8
_NEVER = math.inf


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
    """Return the difference of `other` from `baseline`."""
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
    doubt = far * far * baseline.variance / (under * under)
    if doubt >= 1.0:
        return None
    ratio = other.mean / under
    inside = other.variance + ratio * ratio * baseline.variance - doubt * other.variance
    reach = far / abs(under) * math.sqrt(max(inside, 0.0))
    low, high = (ratio - reach) / (1.0 - doubt), (ratio + reach) / (1.0 - doubt)
    return Bounded(100.0 * (ratio - 1.0), 100.0 * (low - 1.0), 100.0 * (high - 1.0))
