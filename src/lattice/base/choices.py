"""Words people write for the members of an enumeration."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from lattice.base.errors import UsageError

E = TypeVar("E", bound=StrEnum)


def chosen(kind: type[E], names: Iterable[str], noun: str) -> frozenset[E]:
    """The members named, whatever their case; an unknown name lists the known ones."""
    members: set[E] = set()
    for name in names:
        try:
            members.add(kind(name.lower()))
        except ValueError:
            known = ", ".join(kind)
            raise UsageError(f"{name!r} is no {noun}.", hint=f"Known are {known}.") from None
    return frozenset(members)
