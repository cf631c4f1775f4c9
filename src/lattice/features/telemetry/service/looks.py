"""The port `NodeLooks`: what the nodes of an attempt measure right now, asked of their agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from lattice.base.errors import LatticeError
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodelook import (
    NodeMeasured,
    NodeNews,
    NodeOver,
    NodeSight,
    NodeSilence,
)
from lattice.domain.nodeset import NodeSet
from lattice.domain.stream import CarrierLost
from lattice.features.telemetry.convert.looks import Want
from lattice.features.telemetry.service.asking import OTHER_RUN, answers, is_own, question
from lattice.features.telemetry.service.followed import Followed
from lattice.features.telemetry.service.following import Means, NodeFollows

_AT_ONCE = 64


class _NoAnswer(Exception):
    """In words."""


class AgentLooks:
    """Over streams to the agents; whoever composes the process closes it."""

    def __init__(self, means: Means) -> None:
        self._nodes = means.nodes
        self._signer = means.signer
        self._whose = means.whose
        self._follows = NodeFollows(means)
        self.dropped_total = 0
        """Measurements that followers were too slow for."""

    @property
    def followed(self) -> int:
        """How many nodes' measurements are followed on this server, once for each attempt."""
        return self._follows.open

    async def aclose(self) -> None:
        await self._follows.aclose()

    async def look(
        self, attempt: JobAttempt, *, only: Collection[str] | None = None, within_s: float = 3.0
    ) -> tuple[tuple[NodeSight, ...], tuple[NodeSilence, ...]]:
        """Every node once, in parallel. Never raises."""
        names = [each for each in nodes_of(attempt) if only is None or each in only]
        if not names:
            return (), ()
        turns = asyncio.Semaphore(_AT_ONCE)
        looking = {
            asyncio.create_task(self._look(attempt, node, turns), name=f"look {node}"): node
            for node in names
        }
        try:
            await asyncio.wait(looking, timeout=within_s)
        finally:
            for task in looking:
                task.cancel()
            told = await asyncio.gather(*looking, return_exceptions=True)
        sights, silences = [], []
        for node, each in zip(looking.values(), told, strict=True):
            if isinstance(each, NodeSight):
                sights.append(each)
            else:
                silences.append(NodeSilence(node, _words(each, within_s)))
        return tuple(sights), tuple(silences)

    async def _look(self, attempt: JobAttempt, node: str, turns: asyncio.Semaphore) -> NodeSight:
        async with turns:
            asked = question(self._signer, attempt, node, Want.LOOK)
            async with aclosing(answers(self._nodes, asked, attempt.allocation.job_id)) as told:
                tell = await anext(told, None)
            if isinstance(tell, NodeMeasured):
                if not await is_own(self._whose, attempt, node, tell.sight.now):
                    raise _NoAnswer(OTHER_RUN)
                return tell.sight
            if isinstance(tell, NodeOver):
                raise _NoAnswer("the job's processes are gone from it")
        raise _NoAnswer("it does not know this job")

    @asynccontextmanager
    async def follow(self, attempt: JobAttempt) -> AsyncIterator[AsyncIterator[NodeNews]]:
        """What all its nodes tell, as it comes. What is yielded is a `Followed`."""
        followed = Followed(on_lost=self._note_lost)
        async with AsyncExitStack() as stack:
            for node in nodes_of(attempt):
                stack.enter_context(self._follows.joined(attempt, node, followed))
            yield followed

    def _note_lost(self) -> None:
        self.dropped_total += 1


def nodes_of(attempt: JobAttempt) -> tuple[str, ...]:
    """Its nodes by name; none where Slurm names none."""
    try:
        return tuple(NodeSet.parse(attempt.attempt.nodes)) if attempt.attempt.nodes else ()
    except ValueError:
        return ()


def _words(error: BaseException, within_s: float) -> str:
    if isinstance(error, asyncio.CancelledError | TimeoutError):
        return f"it did not answer within {within_s:.2g} s"
    if isinstance(error, LatticeError):
        return error.message.rstrip(".")
    if isinstance(error, _NoAnswer | CarrierLost):
        return str(error)
    return "what it said can't be read"
