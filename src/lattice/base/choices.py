"""Words that people write for the members of an enumeration."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from lattice.base.errors import UsageError

E = TypeVar("E", bound=StrEnum)


def one_of(kind: type[E], name: str, noun: str = "") -> E:
    """The member of this name, in any case. Raises `UsageError` with the known names."""
    try:
        return kind(name.lower())
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(
            f"{name[:60]!r} is no {noun or kind.__name__.lower()}.", hint=f"Known are {known}."
        ) from None


def chosen(kind: type[E], names: Iterable[str], noun: str) -> frozenset[E]:
    """The named members, in any case. Raises `UsageError` with the known names."""
    return frozenset(one_of(kind, name, noun) for name in names)
