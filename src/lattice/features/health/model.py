"""What the feature answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`, or `degraded` while an engine the server stands on does not answer."""

    status: str
    version: str
