"""Finds outliers by medians. Pure.

An outlier distorts mean and deviation. The median and the median absolute deviation (MAD) resist
that, as long as most values are alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

FEWEST = 3
"""With two values it is unknown which one is the outlier."""
_NORMAL = 1.4826
"""MAD times this is the standard deviation of a normal distribution."""
_DEVIATIONS = 6.0
_LEAST_SPREAD = 0.05
"""As a share of the median: even equal machines differ by this much."""


def outliers(values: Mapping[K, float], *, least_percent: float, floor: float) -> dict[K, float]:
    """Return the outliers, with their distance in percent of the median (negative: below).

    An outlier is more than six robust deviations, `least_percent` and `floor` away. `floor` is in
    the unit of the values. If more than a third are, the result is empty.
    """
    if len(values) < FEWEST:
        return {}
    middle = median(values.values())
    spread = _NORMAL * median(abs(each - middle) for each in values.values())
    spread = max(spread, _LEAST_SPREAD * abs(middle))
    far_by = max(_DEVIATIONS * spread, abs(middle) * least_percent / 100.0, floor)
    far = {
        key: 100.0 * (value - middle) / middle if middle else 100.0
        for key, value in values.items()
        if abs(value - middle) > far_by
    }
    return far if len(far) * FEWEST <= len(values) else {}
