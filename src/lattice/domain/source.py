"""The word on where an answer came from; apart, so that showing one needs no more than this."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

LIVE = "slurmctld"
PAST = "slurmdbd"
AGREED = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an answer came from and how old it is; not `ok` once it can't be called current."""

    name: str
    ok: bool
    as_of: datetime | None = None
    age_s: float | None = None
    error: str | None = None
