"""How often an allocation is sampled: the modes, and the one in force. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.metric import Provenance

DEBUG_S = 1800
"""How long debug lasts by default."""
LONGEST_DEBUG_S = 24 * 3600


class Mode(StrEnum):
    """The modes that an owner can choose."""

    PROD = "prod"
    DEBUG = "debug"
    AUDIT = "audit"

    @property
    def interval_s(self) -> float:
        return 1.0 if self is Mode.DEBUG else 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeInForce:
    """The current mode of an allocation."""

    allocation: str
    """Its id."""
    mode: Mode
    interval_s: float
    until: float | None = None
    """When it reverts by itself, in seconds since 1970; None: it does not."""
    set_by: str = ""
    """The actor that switched; empty: it is the cluster's default."""


ModeOf: TypeAlias = Callable[[str], ModeInForce]
"""The mode of an allocation by its `ref`; at once, as last read."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many nodes have data."""

    measured: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.measured}/{self.nodes} nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOrigin:
    """What every metric answer carries (SRC-1)."""

    source: Provenance
    age_s: float | None = None
    """Of the newest sample."""
    resolution_s: float | None = None
    coverage: Coverage
    reason: str = ""
    last_error: str = ""
    via: str = ""
    """`store` or `agents`; with the reason, if it is not the usual one."""
