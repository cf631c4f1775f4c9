"""Streams of measurements from nodes: the requests and the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from lattice.access.grants import GrantSigner
from lattice.domain.attempts import JobAttempt
from lattice.domain.stream import Lane, NodeStreams, StreamKind, StreamQuestion
from lattice.features.telemetry.convert.looks import (
    LookAsked,
    LookNews,
    Want,
    opening_bytes,
    tell_of,
)
from lattice.observe.node_questions import started_s, stream_question
from lattice.wire.node_answers import node_answers


def question(
    signer: GrantSigner,
    attempt: JobAttempt,
    node: str,
    want: Want,
    *,
    session: str = "",
    resume: bool = False,
) -> StreamQuestion:
    """Build the request to one node."""
    job_id = attempt.allocation.job_id
    return stream_question(
        signer,
        StreamKind.METRICS,
        node,
        job_id,
        opening_bytes(LookAsked(job_id, want, started_s(attempt))),
        session=session,
        resume=resume,
        lane=Lane.BULK if want is Want.FOLLOW else Lane.INTERACTIVE,
    )


async def answers(
    nodes: NodeStreams, asked: StreamQuestion, job_id: int
) -> AsyncGenerator[LookNews | None, None]:
    """Yield all messages of a node for one request. The caller must close the generator.

    Raises `BadSnapshot` and `CarrierLost`.
    """
    async with aclosing(node_answers(nodes, asked)) as messages:
        async for message in messages:
            yield tell_of(message, asked.node, job_id)
