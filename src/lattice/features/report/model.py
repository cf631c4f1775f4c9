"""What the feature asks and answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.runsummary import RunSummary

LEAST_COVERED = 0.8
"""Advice rests on no less than this share of a run's nodes and time."""
SHORTEST_ADVISED_S = 300.0
"""Of a shorter run too little is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do differently, with the numbers behind it."""

    rule: str
    words: str
    flag: str = ""
    """The option of `sbatch`, whole; empty where none would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One attempt: its summary without the series, and what follows from it."""

    id: str
    attempts: int
    finished: bool
    summary: RunSummary
    advice: tuple[Advice, ...] = ()
    withheld: str = ""
    """Why no advice is given that rests on measurements."""
    kept: datetime | None = None
    """When the summary was written, where it is the one that is kept; None: measured just now."""
