"""Alerts: detected on the node, merged on the server, shown to people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lattice.domain.measured import JobSnapshot


class AlertRule(StrEnum):
    """What is watched (WATCH-2)."""

    GPU_IDLE = "gpu_idle"
    GPU_HANG = "gpu_hang"
    GPU_MEMORY = "gpu_memory"
    NETWORK_ERRORS = "network_errors"
    IO_LATENCY = "io_latency"
    OOM_KILL = "oom_kill"
    THROTTLE = "throttle"
    XID = "xid"
    ECC = "ecc"


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


class Phase(StrEnum):
    FIRING = "firing"
    CLEARED = "cleared"
    UNKNOWN = "unknown"
    """It fired, and its metric is not measured any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule about one subject on one node. The `key` identifies an alert in all phases."""

    rule: AlertRule
    subject: str = ""
    """The subject besides the job: a GPU's UUID; empty: the job on the node."""
    phase: Phase
    severity: Severity
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    since: float
    """When the condition began, in seconds since 1970 by the node's clock."""
    time: float
    """When the alert was made."""
    text: str
    """One sentence with the value and the bound in it."""
    remedy: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.rule.value, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Signs that a job makes progress: when each of them was last seen on its node."""

    output: float | None = None
    """When it last wrote output, in seconds since 1970; None: not known."""
    processor: float | None = None
    """When it last used a noticeable share of a processor."""
    storage: float | None = None
    """When it last read or wrote a noticeable amount."""
    network: float | None = None

    @property
    def last(self) -> float | None:
        times = [each for each in (self.output, self.processor, self.storage, self.network) if each]
        return max(times) if times else None


class Judge(Protocol):
    """Applies the rules to one life of one job on a node. Pure: time comes with the snapshots."""

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:
        """What this snapshot changes: alerts that fire, clear or become unknown."""

    @property
    def firing(self) -> tuple[Alert, ...]:
        """The current alerts, for a new reader."""

    @property
    def progress(self) -> Progress: ...

    @property
    def since(self) -> float | None:
        """The time of the first snapshot; None if there was none."""
