"""How a server comes by what the nodes of a running attempt can tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, RankStack
from lattice.domain.nodelook import NodeSight, NodeSilence


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """Everything that one node tells of a job at once; at least one of the two."""

    node: str
    facts: NodeFacts | None = None
    sight: NodeSight | None = None
    lacking: str = ""
    """Why the other is not there."""


class FactFinding(Protocol):
    """Asks the nodes of a running attempt for their facts, and for what they measure."""

    async def check(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeCheck, ...], tuple[NodeSilence, ...]]:
        """Every node once, in parallel; who has not answered in time is a silence. Never raises."""


class StackTaking(Protocol):
    """Has the stacks of a running attempt's ranks taken on its nodes."""

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeSilence, ...]]:
        """Of every node, in parallel. `subject` is who asks, for the nodes' records. Never raises.

        By node and rank; who has not answered in time is a silence.
        """
