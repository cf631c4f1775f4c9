"""How certain a difference is, in a word for people. Pure."""

from __future__ import annotations

from enum import StrEnum

_SURE, _LIKELY, _ITS_OWN = 0.01, 0.05, 0.05


class Sureness(StrEnum):
    """How certain it is that there is a difference."""

    SURE = "sure"
    """Fewer than 1 in 100 whole comparisons would show it by chance."""
    LIKELY = "likely"
    """Fewer than 1 in 20."""
    PERHAPS = "perhaps"
    """Its own interval excludes zero, but among so many metrics that can happen by chance."""
    NONE_FOUND = "none found"
    """Not proof of equality: `smallest` is the smallest difference that would be found."""
    UNKNOWN = "unknown"
    """There is nothing to judge by."""


def sureness_of(its_own: float, among_all: float) -> Sureness:
    """By the p-value of a difference: alone, and adjusted for all that were tested."""
    if among_all < _SURE:
        return Sureness.SURE
    if among_all < _LIKELY:
        return Sureness.LIKELY
    return Sureness.PERHAPS if its_own < _ITS_OWN else Sureness.NONE_FOUND
