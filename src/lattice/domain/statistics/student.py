"""Student's t distribution, for any degrees of freedom above zero. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_CLOSE = 1e-12
_MOST_STEPS = 400


def cdf(value: float, df: float) -> float:
    """Return the probability of a value no larger than this."""
    if math.isinf(df):
        return 0.5 * math.erfc(-value / math.sqrt(2))
    if math.isinf(value):
        return 1.0 if value > 0 else 0.0
    tail = 0.5 * _beta_share(df / (df + value * value), df / 2, 0.5)
    return 1.0 - tail if value > 0 else tail


def two_sided(value: float, df: float) -> float:
    """Return the probability of a value at least as far from zero."""
    return min(1.0, 2.0 * cdf(-abs(value), df))


@lru_cache(maxsize=4096)
def quantile(share: float, df: float) -> float:
    """Return the value below which this share lies. Raises `ValueError` unless 0 < share < 1."""
    if not 0.0 < share < 1.0 or not df > 0.0:
        raise ValueError("a share between 0 and 1, and degrees of freedom")
    if math.isinf(df):
        return NormalDist().inv_cdf(share)
    if share < 0.5:
        return -quantile(1.0 - share, df)
    high = 1.0
    while cdf(high, df) < share:
        high *= 2.0
    low = 0.0
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        if cdf(middle, df) < share:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _beta_share(at: float, first: float, second: float) -> float:
    """The regularised incomplete beta function."""
    if at <= 0.0 or at >= 1.0:
        return 0.0 if at <= 0.0 else 1.0
    log_front = (
        math.lgamma(first + second)
        - math.lgamma(first)
        - math.lgamma(second)
        + first * math.log(at)
        + second * math.log1p(-at)
    )
    front = math.exp(log_front)
    # The fraction converges fast on one side of the mean; the other side is its mirror.
    if at < (first + 1.0) / (first + second + 2.0):
        return front * _fraction(at, first, second) / first
    return 1.0 - front * _fraction(1.0 - at, second, first) / second


def _fraction(at: float, first: float, second: float) -> float:
    """Evaluate its continued fraction by Lentz's method."""
    upper, lower = 1.0, 1.0 - (first + second) * at / (first + 1.0)
    lower = 1.0 / (lower or _TINY)
    value = lower
    for step in range(1, _MOST_STEPS):
        twice = first + 2 * step
        even = step * (second - step) * at / ((twice - 1.0) * twice)
        odd = -(first + step) * (first + second + step) * at / (twice * (twice + 1.0))
        for term in (even, odd):
            lower = 1.0 / (1.0 + term * lower or _TINY)
            upper = 1.0 + term / upper or _TINY
            change = upper * lower
            value *= change
        if abs(change - 1.0) < _CLOSE:
            break
    return value
