"""How a server gets facts from the nodes of a running attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, RankStack
from lattice.domain.node_snapshot import NodeSnapshot, NodeUnreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """Everything that one node reports about a job at once; at least one of the two."""

    node: str
    facts: NodeFacts | None = None
    sight: NodeSnapshot | None = None
    lacking: str = ""
    """Why the other one is missing."""


class FactSource(Protocol):
    """Asks the nodes of a running attempt for their facts and their measurements."""

    async def check(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeAnswer, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once, in parallel. Never raises.

        A node without a timely answer is unreachable.
        """


class StackSource(Protocol):
    """Collects the stacks of a running attempt's ranks from its nodes."""

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node in parallel. Never raises.

        `subject` is the caller, for the nodes' records. The result is by node and rank. A node
        without a timely answer is unreachable.
        """
