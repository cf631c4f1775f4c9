"""What the feature answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`, or `degraded` while an engine the server stands on does not answer.

    `state` is the agreed state: `ok`, `away`, or `none` where the server has none. `note` is what
    people should know of it, in words.
    """

    status: str
    version: str
    state: str = "none"
    note: str = ""
