"""When a running job last wrote. Pure.

Apart from `logs`, because every command about allocations loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lattice.domain.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOutput:
    """The newest write that a node reported.

    `time` is None if no node that answered has seen one. If not all of `nodes` have `answered`,
    there may be a later one.
    """

    time: datetime | None = None
    nodes: int
    answered: int
    trouble: str = ""
    """Why one of the others did not answer."""


class LastOutputs(Protocol):
    """Asks nodes for their last output."""

    async def of(self, allocation: Allocation) -> LastOutput | None:
        """None if it does not run. Takes about a second at most; silent nodes raise nothing."""
