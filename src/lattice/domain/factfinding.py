"""How a server comes by what the nodes of a running attempt can tell. Pure."""

from __future__ import annotations

from typing import Protocol

from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, RankStack
from lattice.domain.nodelook import NodeSilence


class FactFinding(Protocol):
    """Asks the nodes of a running attempt for their facts."""

    async def facts(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeFacts, ...], tuple[NodeSilence, ...]]:
        """Every node once, in parallel; who has not answered in time is a silence. Never raises."""


class StackTaking(Protocol):
    """Has the stacks of a running attempt's ranks taken on its nodes."""

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeSilence, ...]]:
        """Of every node, in parallel. `subject` is who asks, for the nodes' records. Never raises.

        By node and rank; who has not answered in time is a silence.
        """
