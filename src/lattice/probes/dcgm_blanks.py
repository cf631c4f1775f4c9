"""Values by which NVIDIA's tools say "none": numbers that nobody measured. Pure.

DCGM writes its blanks as the largest values of each type, with the reason in the last digits
(blank, not found, not supported, not permitted), and a floating blank of 2^47: 1.4e14, or 1.4e16
where a share was made a percentage. NVML sets every bit.
"""

from __future__ import annotations

import math

_REASONS = 15
"""A blank and the reasons after it."""
_FIRST = (0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 2**47)
_ALL_BITS = (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
_SCALES = (1, 100, 1000, 1024, 2**20)
"""What tools multiply by before they tell: percent, thousandths, KiB and MiB."""


def is_blank(value: float) -> bool:
    """True for what is not a number, or is one of the blanks, scaled or not."""
    if not math.isfinite(value):
        return True
    told = float(value)
    if told < _FIRST[0]:
        return False
    if any(told == float(each) for each in _ALL_BITS):
        return True
    # As floats on both sides: one of that size holds no single digits.
    return any(
        float(first * scale) <= told <= float((first + _REASONS) * scale)
        for first in _FIRST
        for scale in _SCALES
    )
