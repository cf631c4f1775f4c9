"""Types of fields that the requests of several features share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from lattice.base.errors import UsageError
from lattice.base.operation import FieldRule
from lattice.domain.allocation import (
    REFERENCE_HINT,
    REFERENCE_PATTERN,
    BadReference,
    parse_reference,
)


def checked_reference(text: str) -> str:
    """A reference in the form that is sent. Raises `UsageError`."""
    try:
        return str(parse_reference(text))
    except BadReference as problem:
        raise UsageError(f"{problem}.", hint=REFERENCE_HINT) from None


Reference: TypeAlias = Annotated[str, FieldRule(pattern=REFERENCE_PATTERN, check=checked_reference)]
"""The name of an allocation."""

Attempt: TypeAlias = Annotated[int, FieldRule(least=0, most=1_000_000)]
"""The number of an attempt; 0 is the newest."""

Repeated: TypeAlias = Annotated[bool, FieldRule(name="Lattice-Repeated", header=True)]
"""True if the request was sent before and may have been carried out then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """A request about one allocation, and nothing else."""

    id: Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyRequest:
    """A request that has no fields."""
