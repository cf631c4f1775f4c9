"""The source of an answer, in its own module so that showing one imports no more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

LIVE = "slurmctld"
PAST = "slurmdbd"
AGREED = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an answer came from and how old it is; not `ok` once it is not current."""

    name: str
    ok: bool
    as_of: datetime | None = None
    age_s: float | None = None
    error: str | None = None
    incomplete: str | None = None
    """What is missing from its answers although it answers, and what to do; for people."""
