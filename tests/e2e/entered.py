"""Terminals in jobs of the lab, asked of the root helper as the agent would, without an agent."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.helper import NodeHelper
from lab.laboratory import Lab
from lab.users import AGENT_USER
from lattice.access.grants import GrantSigner
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.privileged import (
    Answer,
    Enter,
    Outcome,
    Question,
    Rejoin,
    digest_of,
    read_answer,
    verb_of,
    write_request,
)
from tests.contract.identities import being
from tests.fakes.terminal_client import TerminalClient


@dataclass
class Door:
    """A helper's socket, and a server whose grants it believes."""

    socket: Path
    signer: GrantSigner
    node: str = "n1"
    _clients: list[TerminalClient] = field(default_factory=list)

    def ask(
        self, question: Question, *, user: str, job: int, subject: str = "s", started: int = 0
    ) -> tuple[Answer, list[int]]:
        grant = self.signer.issue(
            verb_of(question).act, self.node, subject=subject, user=user, job_id=job,
            started=started, digest=digest_of(question),
        )  # fmt: skip
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(30)
            with being(AGENT_USER):
                connection.connect(str(self.socket))
            connection.send(write_request(grant, question))
            raw, passed = packet.receive(connection)
        return read_answer(raw), passed

    def refused(self, question: Question, *, user: str, job: int, started: int = 0) -> Answer:
        """What it says instead of giving a terminal away."""
        answer, passed = self.ask(question, user=user, job=job, started=started)
        packet.close_all(passed)
        assert passed == []
        assert answer.outcome is not Outcome.DONE
        return answer

    def enter(
        self,
        job: int,
        *argv: str,
        user: str = "alice",
        terminal: str = "xterm",
        tools: str = "",
        session: str = "",
    ) -> TerminalClient:
        """A terminal, entered."""
        question = asking(*argv, terminal=terminal, tools=tools, session=session)
        answer, passed = self.ask(question, user=user, job=job)
        assert (answer.outcome, len(passed)) == (Outcome.DONE, 1), answer
        client = TerminalClient(socket.socket(fileno=passed[0]))
        self._clients.append(client)
        client.until(lambda: client.started is not None)
        return client

    def rejoin(self, session: str, job: int, *, user: str = "alice") -> socket.socket:
        answer, passed = self.ask(Rejoin(session), user=user, job=job)
        assert (answer.outcome, len(passed)) == (Outcome.DONE, 1), answer
        return socket.socket(fileno=passed[0])

    def end_all(self) -> None:
        """Say the last word for every client, so that nobody waits for it."""
        for client in self._clients:
            if not client.closed and client.exit is None:
                client.hang_up()
                client.turn()
            client.cut()


def asking(
    *argv: str,
    terminal: str = "xterm",
    tools: str = "",
    session: str = "",
    uncontained: bool = False,
) -> Enter:
    return Enter(session or secrets.token_hex(16), argv, terminal, 30, 100, tools, uncontained)


def signer(lab: Lab) -> GrantSigner:
    return GrantSigner(SigningKey.load(lab.gate.grant_key), SystemClock())


@contextmanager
def door_of(lab: Lab, helper: NodeHelper) -> Iterator[Door]:
    door = Door(helper.socket, signer(lab))
    yield door
    door.end_all()
