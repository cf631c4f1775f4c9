"""What the feature asks and answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.sharing import ReadRecord
from lattice.domain.telemetry import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOrder:
    """How closely an allocation is to be measured, and for how long.

    0: half an hour for debug, without end for the others.
    """

    mode: Mode
    duration_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """How closely an allocation is measured."""

    allocation: str
    mode: Mode
    interval_s: float
    until: datetime | None = None
    """When it reverts by itself; None: it does not."""
    set_by: str = ""
    """Who switched; empty: it is the cluster's usual mode."""
    debug_now: int = 0
    """How many allocations of the cluster are in debug."""
    debug_most: int = 0
    """How many may be."""
    readers: tuple[ReadRecord, ...] = ()
    """In audit, and only to the owner: who else has looked, and how; newest first."""
