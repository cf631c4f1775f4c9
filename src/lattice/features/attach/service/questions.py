"""Requests to a node: one for its root helper inside one for its agent, each with a grant.

The grant for the helper covers every field of its request. The agent checks the outer grant and
passes the inner request on unchanged.
"""

from __future__ import annotations

from lattice.access.actor import Actor
from lattice.access.grants import GrantSigner
from lattice.base.errors import InternalError, UsageError
from lattice.domain.allocation import Allocation
from lattice.domain.grant import Act
from lattice.domain.privileged import (
    Enter,
    EnterSigned,
    Rejoin,
    RejoinSigned,
    write_request,
)
from lattice.domain.privileged import digest_of as question_digest
from lattice.domain.stream import StreamKind, StreamQuestion, digest_of
from lattice.features.attach.model import Start
from lattice.features.attach.recording_frames import RecordingOrder, write_opening

ENTER_S = 12.0
"""To mount an image or a home may take a while; a connection is silent for 15 s at most."""


class HelperQuestions:
    """Makes and signs them. `uncontained`: whether jobs without an extern step may be entered."""

    def __init__(self, signer: GrantSigner, *, uncontained: bool = False) -> None:
        self._signer = signer
        self._uncontained = uncontained

    def enter(self, start: Start, *, recorded: bool = False) -> Enter:
        """The request that begins a terminal. Raises `UsageError`."""
        kind = EnterSigned if recorded else Enter
        question = kind(
            session=start.session,
            argv=start.command,
            terminal=start.terminal,
            rows=start.rows,
            columns=start.columns,
            tools=start.tools,
            uncontained=self._uncontained,
        )
        if fault := question.fault():
            raise UsageError(f"That can't be run: {fault}.")
        return question

    @staticmethod
    def rejoin(session: str, *, recorded: bool = False) -> Rejoin:
        """The request for the terminal that is there already."""
        return RejoinSigned(session) if recorded else Rejoin(session)

    def of_node(
        self,
        actor: Actor,
        job: Allocation,
        node: str,
        question: Enter | Rejoin,
        order: RecordingOrder | None = None,
    ) -> StreamQuestion:
        """The request with its grants, for the node. `order` is for its recorder."""
        kind, resume = StreamKind.ATTACH, isinstance(question, Rejoin)
        inner = self._grant(actor, job, node, question_digest(question))
        opening = write_request(inner, question)
        if order is not None:
            opening = write_opening(order, opening)
        return StreamQuestion(
            node=node,
            kind=kind,
            session=question.session,
            opening=opening,
            grant=self._grant(actor, job, node, digest_of(question.session, kind, opening)),
            resume=resume,
            patience_s=5.0 if resume else ENTER_S,
        )

    def _grant(self, actor: Actor, job: Allocation, node: str, digest: str) -> str:
        if job.started is None:
            raise InternalError("The job runs, and its start is not known.")
        return self._signer.issue(
            Act.ATTACH,
            node,
            subject=actor.sub,
            user=job.user,
            job_id=job.job_id,
            started=int(job.started.timestamp()),
            digest=digest,
        )
