"""The answer of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`, or `degraded` while Slurm or the state store does not answer.

    `state` is the state store's: `ok`, `away`, or `none` if the server has none. `note` is a
    message for people.
    """

    status: str
    version: str
    state: str = "none"
    note: str = ""
