"""Implements the port `NodeSnapshots`: current values of an attempt's nodes, from their agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from lattice.domain.attempts import JobAttempt
from lattice.domain.node_snapshot import (
    NodeMeasured,
    NodeNews,
    NodeOver,
    NodeSnapshot,
    NodeUnreachable,
)
from lattice.domain.run_events import NodeEvents
from lattice.features.telemetry.convert.run_events import events_of
from lattice.features.telemetry.convert.snapshots import Want, news_of
from lattice.features.telemetry.service.node_follow import (
    Means,
    NodeFollows,
    question,
)
from lattice.features.telemetry.service.node_news import FollowedNews
from lattice.observe.node_questions import (
    OTHER_RUN,
    NoAnswer,
    ask_all,
    is_own_run,
    node_answers,
    nodes_of,
)


class AgentSnapshots:
    """Requests values over streams to the agents; the composition root closes it."""

    def __init__(self, means: Means) -> None:
        self._nodes = means.nodes
        self._signer = means.signer
        self._find_attempt = means.find_attempt
        self._follows = NodeFollows(means)
        self.dropped_total = 0
        """Measurements that were dropped for slow followers."""

    @property
    def followed(self) -> int:
        """Number of followed nodes on this server, counted per attempt."""
        return self._follows.open

    async def aclose(self) -> None:
        await self._follows.aclose()

    async def read(
        self, attempt: JobAttempt, *, only: Collection[str] | None = None, within_s: float = 3.0
    ) -> tuple[tuple[NodeSnapshot, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once, in parallel. Never raises."""
        names = [each for each in nodes_of(attempt) if only is None or each in only]
        found, silences = await ask_all(names, lambda node: self._ask(attempt, node), within_s)
        return tuple(found.values()), silences

    async def _ask(self, attempt: JobAttempt, node: str) -> NodeSnapshot:
        asked = question(self._signer, attempt, node, Want.ONCE)
        async with aclosing(node_answers(self._nodes, asked)) as messages:
            message = await anext(messages, None)
        job_id = attempt.allocation.job_id
        news = news_of(message, node, job_id) if message is not None else None
        if isinstance(news, NodeMeasured):
            began = news.snapshot.now.identity.started
            if not await is_own_run(self._find_attempt, attempt, node, began):
                raise NoAnswer(OTHER_RUN)
            return news.snapshot
        if isinstance(news, NodeOver):
            raise NoAnswer("the job's processes are gone from it")
        raise NoAnswer("it does not know this job")

    async def events(
        self, attempt: JobAttempt, *, within_s: float = 3.0
    ) -> tuple[tuple[NodeEvents, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node once for what happened. Never raises."""
        found, silences = await ask_all(
            nodes_of(attempt), lambda node: self._ask_events(attempt, node), within_s
        )
        return tuple(run for runs in found.values() for run in runs), silences

    async def _ask_events(self, attempt: JobAttempt, node: str) -> tuple[NodeEvents, ...]:
        asked = question(self._signer, attempt, node, Want.EVENTS)
        async with aclosing(node_answers(self._nodes, asked)) as messages:
            message = await anext(messages, None)
        runs = events_of(message, node) if message is not None else ()
        own = [
            each for each in runs
            if await is_own_run(self._find_attempt, attempt, node, each.began)
        ]  # fmt: skip
        if not own:
            raise NoAnswer("it does not know this job" if not runs else OTHER_RUN)
        return tuple(own)

    @asynccontextmanager
    async def follow(
        self, attempt: JobAttempt, *, alerts_only: bool = False
    ) -> AsyncIterator[AsyncIterator[NodeNews]]:
        """Yield the news of all its nodes, as a `FollowedNews`."""
        followed = FollowedNews(on_lost=self._note_lost)
        async with AsyncExitStack() as stack:
            for node in nodes_of(attempt):
                stack.enter_context(
                    self._follows.joined(attempt, node, followed, alerts_only=alerts_only)
                )
            yield followed

    def _note_lost(self) -> None:
        self.dropped_total += 1
