"""Alerts as they are told: judged on the node, merged on the server, shown to people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lattice.domain.measured import JobSnapshot


class Rule(StrEnum):
    """What is watched for (WATCH-2)."""

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
    """Where an alert is."""

    FIRING = "firing"
    CLEARED = "cleared"
    UNKNOWN = "unknown"
    """It fired, and what it rests on is not measured any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule about one thing on one node. The same `key` is the same alert, over all phases."""

    rule: Rule
    subject: str = ""
    """What it is about besides the job: a GPU's UUID; empty: the job on the node."""
    phase: Phase
    severity: Severity
    value: float | None = None
    bound: float | None = None
    unit: str = ""
    since: float
    """When what it tells of began, in seconds since 1970 by the node's clock."""
    time: float
    """When it was told."""
    words: str
    """One sentence with the value and the bound in it."""
    remedy: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.rule.value, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Whether a job gets on, as far as its node can tell: when each sign of it last moved."""

    output: float | None = None
    """When it last wrote output, in seconds since 1970; None: not known to have."""
    processor: float | None = None
    """When it last used a noticeable share of a processor."""
    storage: float | None = None
    """When it last read or wrote a noticeable amount."""
    network: float | None = None

    @property
    def last(self) -> float | None:
        told = [each for each in (self.output, self.processor, self.storage, self.network) if each]
        return max(told) if told else None


class Judge(Protocol):
    """The rules over one life of one job on a node. Pure: time comes with the snapshots."""

    def see(self, snapshot: JobSnapshot, output: float | None) -> tuple[Alert, ...]:
        """What this snapshot changes: alerts that fire, clear or become unknown."""

    @property
    def firing(self) -> tuple[Alert, ...]:
        """What stands now, for whoever begins to look."""

    @property
    def progress(self) -> Progress: ...

    @property
    def since(self) -> float | None:
        """The time of the first snapshot it saw; None: it has seen none."""
