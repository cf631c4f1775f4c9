"""Values with which NVIDIA's tools mean "none". Pure.

DCGM's blanks are the largest values of each integer type. Their last digits are the reason: blank,
not found, not supported, not permitted. Its floating-point blank is 2^47: 1.4e14, or 1.4e16 after a
fraction was made a percentage. NVML sets every bit.
"""

from __future__ import annotations

import math

_REASONS = 15
"""The number of reasons after a blank."""
_FIRST = (0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 2**47)
_ALL_BITS = (0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
_SCALES = (1, 100, 1000, 1024, 2**20)
"""Factors that tools apply before they report: percent, thousandths, KiB and MiB."""


def is_blank(value: float) -> bool:
    """True if it is not finite, or is one of the blanks, scaled or not."""
    if not math.isfinite(value):
        return True
    number = float(value)
    if number < _FIRST[0]:
        return False
    if any(number == float(each) for each in _ALL_BITS):
        return True
    # As floats on both sides: a float of that size does not have exact last digits.
    return any(
        float(first * scale) <= number <= float((first + _REASONS) * scale)
        for first in _FIRST
        for scale in _SCALES
    )
