"""Streams to nodes about what they measure: how one is asked for, and of which run it tells."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lattice.access.grants import GrantSigner
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.attempts import JobAttempt, Whose
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import match_attempt
from lattice.domain.stream import Lane, NodeStreams, StreamKind, StreamQuestion, digest_of
from lattice.features.telemetry.convert.looks import (
    LookAsked,
    LookNews,
    Want,
    opening_bytes,
    tell_of,
)
from lattice.wire.asking import node_answers

OTHER_RUN = "it tells of another run of this number"


def question(
    signer: GrantSigner,
    attempt: JobAttempt,
    node: str,
    want: Want,
    *,
    session: str = "",
    resume: bool = False,
) -> StreamQuestion:
    """With a grant for this question and no other."""
    session, kind = session or secrets.token_hex(16), StreamKind.METRICS
    started = attempt.attempt.started
    opening = opening_bytes(
        LookAsked(attempt.allocation.job_id, want, started.timestamp() if started else 0.0)
    )
    grant = signer.issue(
        kind.act,
        node,
        subject="server",
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
        lane=Lane.BULK if want is Want.FOLLOW else Lane.INTERACTIVE,
    )


async def answers(
    nodes: NodeStreams, asked: StreamQuestion, job_id: int
) -> AsyncGenerator[LookNews | None, None]:
    """All that a node says to one question. Whoever reads it closes it.

    Raises `BadTell` and `CarrierLost`.
    """
    async with aclosing(node_answers(nodes, asked)) as messages:
        async for message in messages:
            yield tell_of(message, asked.node, job_id)


async def is_own(whose: Whose, attempt: JobAttempt, node: str, snapshot: JobSnapshot) -> bool:
    """Of the attempt that is meant. The number of a job alone does not say so."""
    began = snapshot.identity.started
    try:
        told = await whose(node, attempt.allocation.job_id, began)
    except NotFound:
        return False
    except Unavailable:
        # While Slurm is silent no attempt begins, and this one was known.
        return match_attempt((attempt.attempt,), began) is not None
    return told.is_same_run(attempt)
