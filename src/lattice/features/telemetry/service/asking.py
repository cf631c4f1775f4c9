"""Streams to nodes about what they measure: how one is asked for, and of which run it tells."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

from lattice.access.grants import GrantSigner
from lattice.base.errors import NotFound, Unavailable
from lattice.domain.attempts import JobAttempt, Whose
from lattice.domain.measured import JobSnapshot
from lattice.domain.nodejobs import match_attempt
from lattice.domain.stream import (
    CarrierLost,
    Lane,
    NodeStreams,
    StreamKind,
    StreamQuestion,
    digest_of,
)
from lattice.features.telemetry.convert.looks import (
    LookAsked,
    LookNews,
    Want,
    opening_bytes,
    tell_of,
)
from lattice.wire.conduit import Conduit, ConduitClosed

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
) -> AsyncIterator[LookNews | None]:
    """All that a node says to one question. Raises `BadTell`, `CarrierLost`, `ConduitClosed`."""
    conduit = Conduit()
    async with nodes.open(asked) as carrier:
        carrying = asyncio.ensure_future(conduit.carry(carrier))
        try:
            while (message := await _received(conduit, carrying)) is not None:
                yield tell_of(bytes(message), asked.node, job_id)
            with suppress(ConduitClosed):
                await conduit.send(b"", last=True)
        finally:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


async def _received(conduit: Conduit, carrying: asyncio.Future[None]) -> bytes | None:
    receiving = asyncio.ensure_future(conduit.receive())
    try:
        await asyncio.wait((carrying, receiving), return_when=asyncio.FIRST_COMPLETED)
        if receiving.done():
            return receiving.result()
        carrying.result()
        raise CarrierLost("the connection was lost")
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


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
