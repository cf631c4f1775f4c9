"""The ports `FactFinding` and `StackTaking`: the nodes of an attempt, asked over their streams.

All at once, up to a bound, with one deadline for all. What a node says is believed of the run that
was meant and of no other, and only as far as it can be read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from lattice.access.grants import GrantSigner
from lattice.base.errors import LatticeError, NotFound, Unavailable
from lattice.domain.attempts import JobAttempt
from lattice.domain.factfinding import NodeCheck
from lattice.domain.jobfacts import FactKind, RankStack
from lattice.domain.nodejobs import match_attempt
from lattice.domain.nodelook import NodeSight, NodeSilence
from lattice.domain.nodeset import NodeSet
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
from lattice.domain.stream import (
    CarrierLost,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
)
from lattice.features.diag.convert.facts import (
    FactsAsked,
    StackNews,
    StacksAsked,
    StacksEnd,
    StacksFailed,
    facts_opening,
    facts_tell_of,
    stacks_opening,
    stacks_tell_of,
)
from lattice.wire.asking import node_answers

Whose = Callable[[str, int, float], Awaitable[JobAttempt]]
"""The attempt of a job that began on a node at a moment, as `AttemptFinder.of`."""
SightOf = Callable[[bytes, str, int], NodeSight | None]
"""Reads what a node answers to a look at a job; None: nothing. Raises `ValueError`."""

_AT_ONCE = 64
_LAST_S = 0.1
"""Of its time, in which a page is made of what has come so far."""
_SERVER = "server"
_MOUNT_S = (0.3, 1.75)
_STACKS_S = (1.0, 13.0)
_UNKNOWN = "it does not know this job"
_OTHER_RUN = "it tells of another run of this number"
_NOTHING = "it measures nothing of this job"
_BROKE_OFF = "it broke off"
_OLDER = "its agent is older than this server, and does not tell"
_UNREADABLE = "what it said can't be read"
_T = TypeVar("_T")


class _NoAnswer(Exception):
    """In words."""


class NodeAsking:
    """Both ports, over streams to the agents."""

    def __init__(
        self, nodes: NodeStreams, signer: GrantSigner, whose: Whose, sight_of: SightOf
    ) -> None:
        self._nodes = nodes
        self._signer = signer
        self._whose = whose
        self._sight_of = sight_of

    async def check(
        self, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[NodeCheck, ...], tuple[NodeSilence, ...]]:
        """Of every node, in parallel. Never raises."""
        until = asyncio.get_running_loop().time() + within_s - _LAST_S

        async def ask(node: str) -> NodeCheck:
            return await self._check(attempt, node, within_s, until)

        return await _of_all(attempt, ask, within_s)

    async def stacks(
        self, subject: str, attempt: JobAttempt, *, within_s: float
    ) -> tuple[tuple[RankStack, ...], tuple[NodeSilence, ...]]:
        """Of every node, in parallel. Never raises."""

        async def ask(node: str) -> Sequence[RankStack]:
            return await self._stacks(subject, attempt, node, within_s)

        told, silences = await _of_all(attempt, ask, within_s)
        found = [each for stacks in told for each in stacks]
        found.sort(key=lambda each: (each.rank is None, each.rank or 0, each.node, each.pid))
        return tuple(found), silences

    async def _check(
        self, attempt: JobAttempt, node: str, within_s: float, until: float
    ) -> NodeCheck:
        mounts = ProbeMounts(_ms(within_s - 1.25, _MOUNT_S))
        opening = facts_opening(
            FactsAsked(
                job_id=attempt.allocation.job_id,
                started=_started(attempt),
                mounts=self._granted(_SERVER, attempt, node, mounts),
                tasks=self._granted(_SERVER, attempt, node, ReadTasks()),
                within_s=max(0.5, within_s - 0.25),
                look=True,
            )
        )
        answers = self._answers(_SERVER, attempt, node, StreamKind.FACTS, opening)
        async with aclosing(answers):
            look = await anext(answers, None)
            if look is None:
                raise _NoAnswer(_BROKE_OFF)
            try:
                async with asyncio.timeout_at(until):
                    payload = await anext(answers, None)
            except TimeoutError:
                sight = await self._sight(attempt, node, look)
                return NodeCheck(
                    node=node,
                    sight=sight,
                    lacking=f"its facts did not come within {within_s:.2g} s",
                )
        # An agent of before tells its facts alone.
        told = facts_tell_of(look if payload is None else payload, node)
        if told is None:
            raise _NoAnswer(_UNKNOWN)
        await self._believe(attempt, node, told.began)
        if payload is None:
            return NodeCheck(node=node, facts=told.facts, lacking=_OLDER)
        lack = told.facts.absence(FactKind.FIGURES)
        if lack is not None:
            return NodeCheck(node=node, facts=told.facts, lacking=lack.reason)
        try:
            sight = await self._sight(attempt, node, look)
        except _NoAnswer as no_answer:
            return NodeCheck(node=node, facts=told.facts, lacking=str(no_answer))
        return NodeCheck(node=node, facts=told.facts, sight=sight)

    async def _sight(self, attempt: JobAttempt, node: str, look: bytes) -> NodeSight:
        """What the node measures of this run. Raises `_NoAnswer`."""
        try:
            sight = self._sight_of(look, node, attempt.allocation.job_id)
        except ValueError:
            raise _NoAnswer(_UNREADABLE) from None
        if sight is None:
            raise _NoAnswer(_NOTHING)
        await self._believe(attempt, node, sight.now.identity.started)
        return sight

    async def _stacks(
        self, subject: str, attempt: JobAttempt, node: str, within_s: float
    ) -> list[RankStack]:
        question = DumpStacks(_ms(within_s - 2.0, _STACKS_S))
        opening = stacks_opening(
            StacksAsked(
                job_id=attempt.allocation.job_id,
                started=_started(attempt),
                request=self._granted(subject, attempt, node, question),
            )
        )
        found: list[RankStack] = []
        answers = self._answers(subject, attempt, node, StreamKind.STACKS, opening)
        async with aclosing(answers):
            async for payload in answers:
                told = stacks_tell_of(payload, node)
                if isinstance(told, StacksEnd):
                    await self._believe(attempt, node, told.began)
                    return found
                found.append(_stack(told))
                if len(found) > MOST_STACKS:
                    raise _NoAnswer("it tells of more processes than were asked for")
        raise _NoAnswer(_BROKE_OFF)

    def _granted(self, subject: str, attempt: JobAttempt, node: str, question: Question) -> bytes:
        """A question for the node's helper, with the grant for it and for nothing else."""
        grant = self._signer.issue(
            verb_of(question).act,
            node,
            subject=subject,
            user=attempt.allocation.user,
            job_id=attempt.allocation.job_id,
            started=int(_started(attempt)),
            digest=question_digest(question),
        )
        return write_request(grant, question)

    async def _answers(
        self, subject: str, attempt: JobAttempt, node: str, kind: StreamKind, opening: bytes
    ) -> AsyncGenerator[bytes, None]:
        session = secrets.token_hex(16)
        asked = StreamQuestion(
            node=node,
            kind=kind,
            session=session,
            opening=opening,
            grant=self._signer.issue(
                kind.act,
                node,
                subject=subject,
                job_id=attempt.allocation.job_id,
                digest=digest_of(session, kind, opening),
            ),
        )
        async with aclosing(node_answers(self._nodes, asked)) as messages:
            async for message in messages:
                yield message

    async def _believe(self, attempt: JobAttempt, node: str, began: float) -> None:
        """Of the attempt that is meant. The number of a job alone does not say so."""
        try:
            told = await self._whose(node, attempt.allocation.job_id, began)
        except NotFound:
            raise _NoAnswer(_OTHER_RUN) from None
        except Unavailable:
            # While Slurm is silent no attempt begins, and this one was known.
            if match_attempt((attempt.attempt,), began) is None:
                raise _NoAnswer(_OTHER_RUN) from None
            return
        if not told.is_same_run(attempt):
            raise _NoAnswer(_OTHER_RUN)


async def _of_all(
    attempt: JobAttempt, ask: Callable[[str], Awaitable[_T]], within_s: float
) -> tuple[tuple[_T, ...], tuple[NodeSilence, ...]]:
    """What each node answers, in their order, and who did not."""
    names = _nodes_of(attempt)
    if not names:
        return (), ()
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(node: str) -> _T:
        async with turns:
            return await ask(node)

    asking = [asyncio.create_task(in_turn(node), name=f"ask {node}") for node in names]
    try:
        await asyncio.wait(asking, timeout=within_s)
    finally:
        for task in asking:
            task.cancel()
        told = await asyncio.gather(*asking, return_exceptions=True)
    answers, silences = [], []
    for node, each in zip(names, told, strict=True):
        if isinstance(each, BaseException):
            silences.append(NodeSilence(node, _words(each, within_s)))
        else:
            answers.append(each)
    return tuple(answers), tuple(silences)


def _stack(told: StackNews | None) -> RankStack:
    """Raises `_NoAnswer`."""
    if told is None:
        raise _NoAnswer(_UNKNOWN)
    if isinstance(told, StacksFailed):
        raise _NoAnswer(told.words)
    assert isinstance(told, RankStack)
    return told


def _nodes_of(attempt: JobAttempt) -> tuple[str, ...]:
    try:
        return tuple(NodeSet.parse(attempt.attempt.nodes)) if attempt.attempt.nodes else ()
    except ValueError:
        return ()


def _started(attempt: JobAttempt) -> float:
    started = attempt.attempt.started
    return started.timestamp() if started is not None else 0.0


def _ms(seconds: float, bounds: tuple[float, float]) -> int:
    return int(1000 * min(max(seconds, bounds[0]), bounds[1]))


def _words(error: BaseException, within_s: float) -> str:
    if isinstance(error, asyncio.CancelledError | TimeoutError):
        return f"it did not answer within {within_s:.2g} s"
    if isinstance(error, LatticeError):
        return error.message.rstrip(".")
    if isinstance(error, _NoAnswer | CarrierLost):
        return str(error)
    return _UNREADABLE
