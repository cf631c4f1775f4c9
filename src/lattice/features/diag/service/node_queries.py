"""The ports `FactSource` and `StackSource`: queries the nodes of an attempt over streams.

All nodes are asked in parallel, up to a bound, with one deadline. An answer is accepted only if it
is valid and about the requested run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from lattice.access.grants import GrantSigner
from lattice.domain.attempts import AttemptLookup, JobAttempt
from lattice.domain.jobfacts import FactKind, RankStack
from lattice.domain.node_snapshot import NodeAnswer, NodeSnapshot, NodeUnreachable
from lattice.domain.privileged import (
    DumpStacks,
    ProbeMounts,
    Question,
    ReadTasks,
    verb_of,
    write_request,
)
from lattice.domain.privileged import digest_of as question_digest
from lattice.domain.probed import MOST_STACKS
from lattice.domain.stream import NodeStreams, StreamKind
from lattice.features.diag.convert import (
    FactsAsked,
    StacksAsked,
    StacksEnd,
    StacksFailed,
    facts_of,
    facts_opening,
    stack_news_of,
    stacks_opening,
)
from lattice.observe.node_questions import (
    OTHER_RUN,
    UNREADABLE,
    NoAnswer,
    ask_all,
    is_own_run,
    node_answers,
    nodes_of,
    started_s,
    stream_question,
)

ParseSnapshot = Callable[[bytes, str, int], NodeSnapshot | None]
"""Parses a node's snapshot of a job; None without one. Raises `ValueError`."""

_LAST_S = 0.1
"""Time reserved at the end to build the page from the answers so far."""
_SERVER = "server"
_MOUNT_S = (0.3, 1.75)
_STACKS_S = (1.0, 13.0)
_UNKNOWN = "it does not know this job"
_NOTHING = "it measures nothing of this job"
_BROKE_OFF = "it broke off"
_OLDER = "its agent is older than this server, and does not tell"


class NodeQueries:
    """Implements both ports, over streams to the agents."""

    def __init__(
        self,
        nodes: NodeStreams,
        signer: GrantSigner,
        find_attempt: AttemptLookup,
        parse_snapshot: ParseSnapshot,
    ) -> None:
        self._nodes = nodes
        self._signer = signer
        self._find_attempt = find_attempt
        self._parse_snapshot = parse_snapshot

    async def check(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeAnswer, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node in parallel. Never raises."""
        until = asyncio.get_running_loop().time() + within_s - _LAST_S

        async def ask(node: str) -> NodeAnswer:
            return await self._check(attempt, node, within_s, until)

        found, silences = await ask_all(nodes_of(attempt), ask, within_s)
        return tuple(found.values()), silences

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeUnreachable, ...]]:
        """Ask every node in parallel. Never raises."""

        async def ask(node: str) -> Sequence[RankStack]:
            return await self._stacks(subject, attempt, node, within_s)

        answers, silences = await ask_all(nodes_of(attempt), ask, within_s)
        found = [each for stacks in answers.values() for each in stacks]
        found.sort(key=lambda each: (each.rank is None, each.rank or 0, each.node, each.pid))
        return tuple(found), silences

    async def _check(
        self, attempt: JobAttempt, node: str, within_s: float, until: float
    ) -> NodeAnswer:
        mounts = ProbeMounts(_ms(within_s - 1.25, _MOUNT_S))
        opening = facts_opening(
            FactsAsked(
                job_id=attempt.allocation.job_id,
                started=started_s(attempt),
                mounts=self._granted(_SERVER, attempt, node, mounts),
                tasks=self._granted(_SERVER, attempt, node, ReadTasks()),
                within_s=max(0.5, within_s - 0.25),
                look=True,
            )
        )
        answers = self._answers(_SERVER, attempt, node, StreamKind.FACTS, opening)
        async with aclosing(answers):
            first = await anext(answers, None)
            if first is None:
                raise NoAnswer(_BROKE_OFF)
            try:
                async with asyncio.timeout_at(until):
                    payload = await anext(answers, None)
            except TimeoutError:
                snapshot = await self._snapshot(attempt, node, first)
                return NodeAnswer(
                    node=node,
                    snapshot=snapshot,
                    lacking=f"its facts did not come within {within_s:.2g} s",
                )
        # An older agent sends only facts.
        answer = facts_of(first if payload is None else payload, node)
        if answer is None:
            raise NoAnswer(_UNKNOWN)
        await self._believe(attempt, node, answer.began)
        if payload is None:
            return NodeAnswer(node=node, facts=answer.facts, lacking=_OLDER)
        lack = answer.facts.absence(FactKind.FIGURES)
        if lack is not None:
            return NodeAnswer(node=node, facts=answer.facts, lacking=lack.reason)
        try:
            snapshot = await self._snapshot(attempt, node, first)
        except NoAnswer as no_answer:
            return NodeAnswer(node=node, facts=answer.facts, lacking=str(no_answer))
        return NodeAnswer(node=node, facts=answer.facts, snapshot=snapshot)

    async def _snapshot(self, attempt: JobAttempt, node: str, payload: bytes) -> NodeSnapshot:
        """Return the node's snapshot of this run. Raises `NoAnswer`."""
        try:
            snapshot = self._parse_snapshot(payload, node, attempt.allocation.job_id)
        except ValueError:
            raise NoAnswer(UNREADABLE) from None
        if snapshot is None:
            raise NoAnswer(_NOTHING)
        await self._believe(attempt, node, snapshot.now.identity.started)
        return snapshot

    async def _stacks(
        self, subject: str, attempt: JobAttempt, node: str, within_s: float
    ) -> list[RankStack]:
        question = DumpStacks(_ms(within_s - 2.0, _STACKS_S))
        opening = stacks_opening(
            StacksAsked(
                job_id=attempt.allocation.job_id,
                started=started_s(attempt),
                request=self._granted(subject, attempt, node, question),
            )
        )
        found: list[RankStack] = []
        answers = self._answers(subject, attempt, node, StreamKind.STACKS, opening)
        async with aclosing(answers):
            async for payload in answers:
                news = stack_news_of(payload, node)
                if isinstance(news, StacksEnd):
                    await self._believe(attempt, node, news.began)
                    return found
                if news is None:
                    raise NoAnswer(_UNKNOWN)
                if isinstance(news, StacksFailed):
                    raise NoAnswer(news.reason)
                found.append(news)
                if len(found) > MOST_STACKS:
                    raise NoAnswer("it tells of more processes than were asked for")
        raise NoAnswer(_BROKE_OFF)

    def _granted(self, subject: str, attempt: JobAttempt, node: str, question: Question) -> bytes:
        """Build a request for the node's helper, with a grant for only that."""
        grant = self._signer.issue(
            verb_of(question).act,
            node,
            subject=subject,
            user=attempt.allocation.user,
            job_id=attempt.allocation.job_id,
            started=int(started_s(attempt)),
            digest=question_digest(question),
        )
        return write_request(grant, question)

    def _answers(
        self, subject: str, attempt: JobAttempt, node: str, kind: StreamKind, opening: bytes
    ) -> AsyncGenerator[bytes, None]:
        asked = stream_question(self._signer, kind, node, attempt, opening, subject=subject)
        return node_answers(self._nodes, asked)

    async def _believe(self, attempt: JobAttempt, node: str, began: float) -> None:
        """Raise `NoAnswer` if the node reports another run."""
        if not await is_own_run(self._find_attempt, attempt, node, began):
            raise NoAnswer(OTHER_RUN)


def _ms(seconds: float, bounds: tuple[float, float]) -> int:
    return int(1000 * min(max(seconds, bounds[0]), bounds[1]))
