"""Puts a difference into the terms of the answer. Pure."""

from __future__ import annotations

from lattice.domain.statistics.mean_difference import Difference
from lattice.features.compare.model import Change


def change_of(found: Difference) -> Change:
    """Return the difference with its interval."""
    percent = found.percent
    return Change(
        absolute=found.absolute.value,
        absolute_low=found.absolute.low,
        absolute_high=found.absolute.high,
        percent=percent.value if percent is not None else None,
        percent_low=percent.low if percent is not None else None,
        percent_high=percent.high if percent is not None else None,
    )
