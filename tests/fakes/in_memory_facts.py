"""Nodes that tell the facts and the stacks a test says they have."""

from __future__ import annotations

import asyncio

from lattice.domain.attempts import JobAttempt
from lattice.domain.jobfacts import NodeFacts, RankStack
from lattice.domain.node_snapshot import NodeAnswer, NodeSnapshot, NodeUnreachable


class InMemoryFacts:
    """`FactFinding`. `hangs`: it does not even come back."""

    def __init__(self) -> None:
        self.told: dict[str, NodeFacts] = {}
        self.sights: dict[str, NodeSnapshot] = {}
        self.silences: dict[str, NodeUnreachable] = {}
        self.hangs = False
        self.asked = 0

    async def check(
        self,
        attempt: JobAttempt,  # noqa: ARG002
        *,
        within_s: float,  # noqa: ARG002
    ) -> tuple[tuple[NodeAnswer, ...], tuple[NodeUnreachable, ...]]:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        checks = (
            NodeAnswer(
                node=node,
                facts=facts,
                snapshot=self.sights.get(node),
                lacking="" if node in self.sights else "it does not know this job",
            )
            for node, facts in self.told.items()
        )
        return tuple(checks), tuple(self.silences.values())


class InMemoryStacks:
    """`StackTaking`."""

    def __init__(self) -> None:
        self.told: list[RankStack] = []
        self.silences: list[NodeUnreachable] = []
        self.asked: list[tuple[str, str]] = []
        """Who asked, and about which allocation."""

    async def stacks(
        self,
        subject: str,
        attempt: JobAttempt,
        *,
        within_s: float,  # noqa: ARG002
    ) -> tuple[tuple[RankStack, ...], tuple[NodeUnreachable, ...]]:
        self.asked.append((subject, attempt.allocation.id))
        return tuple(self.told), tuple(self.silences)
