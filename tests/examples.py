"""How many examples a property test takes that wants more or fewer than the others.

The profile (`tests/conftest.py`) says how many the usual test takes, so a gate stays quick and a
night is thorough for all of them.
"""

from __future__ import annotations

from hypothesis import settings


def examples(times_the_usual: float) -> int:
    """A multiple of the profile's number, at least one."""
    return max(round(settings().max_examples * times_the_usual), 1)
