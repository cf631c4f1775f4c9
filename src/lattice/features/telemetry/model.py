"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.request_fields import Reference
from lattice.domain.sharing import ReadRecord
from lattice.domain.telemetry import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOrder:
    """How often an allocation is to be sampled, and for how long.

    A duration of 0 is half an hour for debug, and no end for other modes.
    """

    id: Reference
    mode: Mode
    duration_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """How often an allocation is sampled."""

    allocation: str
    mode: Mode
    interval_s: float
    until: datetime | None = None
    """When the mode ends by itself; None if it does not."""
    set_by: str = ""
    """Who switched it; empty for the cluster's default mode."""
    debug_now: int = 0
    """Number of allocations of the cluster in debug."""
    debug_most: int = 0
    """The limit of `debug_now`."""
    readers: tuple[ReadRecord, ...] = ()
    """In audit mode, for the owner only: other readers, newest first."""
