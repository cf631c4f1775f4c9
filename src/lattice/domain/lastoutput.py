"""When a running allocation last wrote something: asked of its nodes, never guessed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lattice.domain.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOutput:
    """The newest write that a node told of.

    `time` is None where those who answered have seen none. Where not all of `nodes` have
    `answered`, there may be a later one.
    """

    time: datetime | None = None
    nodes: int
    answered: int
    trouble: str = ""
    """Why one of the others did not."""


class LastOutputs(Protocol):
    """Whoever can ask nodes."""

    async def of(self, allocation: Allocation) -> LastOutput | None:
        """None if it does not run. Takes about a second at most, and raises nothing for nodes."""
