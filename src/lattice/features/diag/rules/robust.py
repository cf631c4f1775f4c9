"""Which one of several is unlike the rest, by medians. Pure.

Mean and deviation are drawn along by the very one that is looked for; the median and the median of
the distances from it (MAD) are not, as long as most are alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

FEWEST = 3
"""Of two nobody can say which is the odd one."""
_NORMAL = 1.4826
"""MAD times this is the standard deviation, where they are spread normally."""
_DEVIATIONS = 6.0
_LEAST_SPREAD = 0.05
"""Of the median: even machines that are alike differ by so much."""


def outliers(values: Mapping[K, float], *, least_percent: float, floor: float) -> dict[K, float]:
    """Who is far from the rest, and by how many percent of their median (negative: below).

    Far is more than six robust deviations, more than `least_percent`, and more than `floor` in the
    values' own unit. If a third or more are far, there is no rest to differ from.
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
