"""What a child does with its request: act, write the journal's line, send the answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from lattice.base import packet
from lattice.domain.administration import AdministrationQuestion
from lattice.domain.privileged import MOST_OUTPUTS, Answer, HelperRole, Outcome, write_answer
from lattice.helper.journal import HelperJournal, Peer
from lattice.helper.judge import AskedGrant

Act: TypeAlias = Callable[[AskedGrant, Sequence[int]], tuple[Answer, Sequence[int]]]
"""Handles a request: returns the answer, and descriptors to pass with it."""


class Responder:
    """Answers one request. A defect becomes the answer `BROKEN`."""

    def __init__(self, act: Act, journal: HelperJournal) -> None:
        self._act = act
        self._journal = journal

    def respond(
        self, connection: socket.socket, peer: Peer, asked: AskedGrant, descriptors: Sequence[int]
    ) -> Outcome:
        """Return the outcome that was sent. The descriptors of the answer stay open."""
        try:
            begun = time.monotonic()
            answer, passed = self._act(asked, descriptors)
            self.record(peer, asked, answer, time.monotonic() - begun)
            connection.setblocking(True)
            packet.send(connection, write_answer(answer), passed, most_descriptors=MOST_OUTPUTS)
        except Exception as error:  # noqa: BLE001 - a defect must not leak out of the child
            self.report_defect(connection, peer, asked.verb.name, error)
            return Outcome.BROKEN
        return answer.outcome

    def report_defect(
        self, connection: socket.socket, peer: Peer, verb: str, error: Exception
    ) -> None:
        self._journal.note("defect", peer, verb=verb, reason=f"{type(error).__name__}")
        with suppress(OSError):
            broken = Answer(outcome=Outcome.BROKEN, message="the helper failed here")
            packet.send(connection, write_answer(broken))

    def record(self, peer: Peer, asked: AskedGrant, answer: Answer, seconds: float) -> None:
        """Write the journal's line of an act."""
        grant, job = asked.grant, asked.job_id
        # A gate's message may be the output of a user's own program.
        message = answer.message if asked.verb.role is HelperRole.NODE else ""
        reason = {"reason": message} if message else {}
        if isinstance(asked.question, AdministrationQuestion):
            reason["change"] = asked.question.summary()
        self._journal.note(
            "act",
            peer,
            verb=asked.verb.name,
            grant=grant.id if grant else "",
            subject=grant.subject if grant else "",
            user=asked.user,
            job=answer.output if asked.verb.name == "submit" else str(job or ""),
            outcome=answer.outcome.value,
            exit_code=answer.exit_code,
            seconds=round(seconds, 3),
            **reason,
        )
