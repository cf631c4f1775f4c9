"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.runsummary import RunSummary
from lattice.domain.training_run import TrainingRun

LEAST_COVERED = 0.8
"""The least share of a run's nodes and time that must be measured for advice."""
SHORTEST_ADVISED_S = 300.0
"""A shorter run has too little data for advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to change, with the numbers behind it."""

    rule: str
    words: str
    flag: str = ""
    """The complete option of `sbatch`; empty if none would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One attempt: its summary without the series, and the advice."""

    id: str
    attempts: int
    finished: bool
    summary: RunSummary
    advice: tuple[Advice, ...] = ()
    withheld: str = ""
    """Why there is no advice that is based on measurements."""
    kept: datetime | None = None
    """When the stored summary was written; None if the figures were queried just now."""
    runs: tuple[TrainingRun, ...] = ()
    """Training runs during this attempt, newest first."""
