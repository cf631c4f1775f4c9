"""Puts a difference into the terms of the answer. Pure."""

from __future__ import annotations

from lattice.features.compare.model import Change, Sureness
from lattice.features.compare.statistics.mean_difference import Difference

_SURE, _LIKELY, _ITS_OWN = 0.01, 0.05, 0.05


def sureness_of(its_own: float, among_all: float) -> Sureness:
    """Return how sure it is, by its p-value alone and among all of the page."""
    if among_all < _SURE:
        return Sureness.SURE
    if among_all < _LIKELY:
        return Sureness.LIKELY
    return Sureness.PERHAPS if its_own < _ITS_OWN else Sureness.NONE_FOUND


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
