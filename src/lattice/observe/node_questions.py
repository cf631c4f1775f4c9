"""Questions to the nodes of an attempt: how to ask, which nodes answered, and for which run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

from lattice.access.grants import GrantSigner
from lattice.base.errors import LatticeError, NotFound, Unavailable
from lattice.domain.attempts import AttemptLookup, JobAttempt
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.nodejobs import match_attempt
from lattice.domain.nodeset import NodeSet
from lattice.domain.pipe import BadFrame, Pipe
from lattice.domain.stream import (
    Carrier,
    CarrierLost,
    Lane,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
)

OTHER_RUN = "it tells of another run of this number"
UNREADABLE = "what it said can't be read"
_AT_ONCE = 64
_MANY_NODES = 8
"""Streams to more nodes share connections: a handshake for each would take long."""
T = TypeVar("T")


class NoAnswer(Exception):
    """Why a node gave no usable answer, as text."""


def stream_question(  # noqa: PLR0913 - each is part of the question
    signer: GrantSigner,
    kind: StreamKind,
    node: str,
    attempt: JobAttempt,
    opening: bytes,
    *,
    subject: str = "server",
    session: str = "",
    resume: bool = False,
    lane: Lane = Lane.INTERACTIVE,
) -> StreamQuestion:
    """A question to a node of the attempt, with a grant for it alone."""
    session = session or secrets.token_hex(16)
    grant = signer.issue(
        kind.act,
        node,
        subject=subject,
        job_id=attempt.allocation.job_id,
        digest=digest_of(session, kind, opening),
    )
    return StreamQuestion(
        node=node,
        kind=kind,
        session=session,
        opening=opening,
        grant=grant,
        resume=resume,
        lane=lane,
        shared=attempt.attempt.node_count > _MANY_NODES,
    )


async def ask_all(
    nodes: Iterable[str], ask: Callable[[str], Awaitable[T]], within_s: float
) -> tuple[dict[str, T], tuple[NodeUnreachable, ...]]:
    """The answer of each node, in their order, and the nodes without one. Never raises.

    All are asked at once, up to a bound, with one deadline.
    """
    names = tuple(nodes)
    if not names:
        return {}, ()
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(node: str) -> T:
        async with turns:
            return await ask(node)

    asking = [asyncio.create_task(in_turn(node), name=f"ask {node}") for node in names]
    try:
        await asyncio.wait(asking, timeout=within_s)
    finally:
        for task in asking:
            task.cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
    answers: dict[str, T] = {}
    silences = []
    for node, each in zip(names, found, strict=True):
        if isinstance(each, BaseException):
            silences.append(NodeUnreachable(node, _reason(each, within_s)))
        else:
            answers[node] = each
    return answers, tuple(silences)


async def is_own_run(
    find_attempt: AttemptLookup, attempt: JobAttempt, node: str, began: float
) -> bool:
    """True if the run that began there is the given attempt.

    The job id alone is not enough, because Slurm reuses it.
    """
    try:
        found = await find_attempt(node, attempt.allocation.job_id, began)
    except NotFound:
        return False
    except Unavailable:
        # While Slurm is silent no attempt begins, and this one was known.
        return match_attempt((attempt.attempt,), began) is not None
    return found.is_same_run(attempt)


def nodes_of(attempt: JobAttempt) -> tuple[str, ...]:
    """The names of its nodes; empty if Slurm names none."""
    try:
        return tuple(NodeSet.parse(attempt.attempt.nodes)) if attempt.attempt.nodes else ()
    except ValueError:
        return ()


def started_s(attempt: JobAttempt) -> float:
    """When the attempt started, as a timestamp; 0 if it has not."""
    started = attempt.attempt.started
    return started.timestamp() if started is not None else 0.0


async def node_answers(nodes: NodeStreams, asked: StreamQuestion) -> AsyncGenerator[bytes, None]:
    """The answer, message by message. The reader closes the generator.

    The caller has a deadline, so there is neither a second connection nor a ping. One task does it
    all, because a page about a large job asks hundreds of nodes. Raises `CarrierLost`, and what
    `NodeStreams.open` raises.
    """
    pipe = Pipe()
    async with nodes.open(asked) as carrier:
        pipe.connected()
        while True:
            while (message := pipe.take()) is not None:
                if message.last:
                    # First of all, so that the node does not wait for a reader that has everything.
                    pipe.write(b"", last=True)
                    await _send_frames(pipe, carrier)
                if message.payload or not message.last:
                    yield message.payload
                if message.last:
                    return
            await _send_frames(pipe, carrier)
            try:
                pipe.receive(await carrier.receive())
            except BadFrame as fault:
                raise CarrierLost(f"what it said can't be read: {fault}") from None


async def _send_frames(pipe: Pipe, carrier: Carrier) -> None:
    for frame in pipe.frames():
        await carrier.send(frame)


def _reason(error: BaseException, within_s: float) -> str:
    if isinstance(error, asyncio.CancelledError | TimeoutError):
        return f"it did not answer within {within_s:.2g} s"
    if isinstance(error, LatticeError):
        return error.message.rstrip(".")
    if isinstance(error, NoAnswer | CarrierLost):
        return str(error)
    return UNREADABLE
