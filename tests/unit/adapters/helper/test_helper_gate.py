"""The gate's port by the helper: what it asks, and what it makes of each answer."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.gate import HelperGate
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.errors import (
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.base.signatures import SigningKey
from lattice.domain.grant import GATE
from lattice.domain.privileged import (
    Answer,
    Outcome,
    Question,
    digest_of,
    read_request,
    verb_of,
    write_answer,
)
from lattice.domain.submission import (
    CancelQuestion,
    ProgramRefused,
    SubmitQuestion,
    Submitted,
    Submitter,
    Unsure,
)

SCRIPT = b"#!/bin/sh\ntrue\n"
ASKED = SubmitQuestion(script_sha256=hashlib.sha256(SCRIPT).hexdigest())
WHO = Submitter("alice", "sub-alice")


class Told(HelperChannel):
    """Answers as told, and keeps what it was asked."""

    def __init__(self, answer: Answer | OSError) -> None:
        super().__init__(Path("/nowhere"))
        self._answer = answer
        self.grant = ""
        self.script = b""

    async def ask(
        self,
        grant: str,
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,  # noqa: ARG002
    ) -> tuple[Answer, list[int]]:
        assert question.fault() == ""  # type: ignore[union-attr]
        self.grant = grant
        self.script = b"".join(os.pread(each, 1000, 0) for each in descriptors)
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer, []


KEY = SigningKey.generate()


def gate(channel: HelperChannel) -> HelperGate:
    return HelperGate(channel, GrantSigner(KEY, SystemClock()))


@pytest.mark.spec("ALLOC-3", "AUTH-9")
async def test_the_grant_names_the_caller_and_binds_every_word() -> None:
    told = Told(Answer(outcome=Outcome.DONE, output="12;lab", notes=("a\x1b[2J",)))
    assert await gate(told).submit(WHO, ASKED, SCRIPT) == Submitted(12, "lab", ("a␛[2J",))
    checker = GrantChecker(GATE, SystemClock(), [KEY.public])
    grant = checker.check(told.grant, verb_of(ASKED).act, digest=digest_of(ASKED))
    assert (grant.user, grant.subject) == ("alice", "sub-alice")
    assert told.script == SCRIPT


class JustStarted(Told):
    """Takes no grant of its first second."""

    def __init__(self) -> None:
        super().__init__(Answer(outcome=Outcome.DONE, output="12;lab"))
        self.grants: list[str] = []

    async def ask(
        self,
        grant: str,
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,
    ) -> tuple[Answer, list[int]]:
        self.grants.append(grant)
        if len(self.grants) == 1:
            return Answer(outcome=Outcome.UNTIMELY, message="it is from before"), []
        return await super().ask(grant, question, descriptors, most_descriptors=most_descriptors)


@pytest.mark.spec("ALLOC-3")
async def test_a_gate_that_has_just_started_is_asked_again_with_a_new_grant() -> None:
    just_started = JustStarted()
    assert await gate(just_started).submit(WHO, ASKED, SCRIPT) == Submitted(12, "lab", ())
    first, second = just_started.grants
    assert first != second
    assert just_started.script == SCRIPT


@pytest.mark.parametrize(
    ("outcome", "message", "kind"),
    [
        (Outcome.FAILED, "sbatch: error: Invalid qos", ProgramRefused),
        (Outcome.FAILED, "sbatch: error: Unable to contact slurm controller", Unavailable),
        (Outcome.ACCOUNT_REFUSED, "no", PermissionRefused),
        (Outcome.DIRECTORY_REFUSED, "no", UsageError),
        (Outcome.UNSURE, "no", Unsure),
        (Outcome.BUSY, "no", Unavailable),
        (Outcome.REFUSED, "no grant for this", Unavailable),
        (Outcome.BAD_QUESTION, "no", UsageError),
        (Outcome.NOT_OFFERED, "no", InternalError),
        (Outcome.BROKEN, "no", InternalError),
    ],
)
async def test_each_answer_has_its_error(
    outcome: Outcome, message: str, kind: type[LatticeError]
) -> None:
    told = Told(Answer(outcome=outcome, message=message, exit_code=1))
    with pytest.raises(kind) as error:
        await gate(told).submit(WHO, ASKED, SCRIPT)
    assert type(error.value) is kind
    assert error.value.hint or kind is UsageError


async def test_several_lines_stay_several_and_harmless() -> None:
    told = Told(Answer(outcome=Outcome.FAILED, message="one\ntwo\x1b]0;x\x07", exit_code=1))
    with pytest.raises(ProgramRefused) as error:
        await gate(told).cancel(WHO, CancelQuestion(jobs=("1",)))
    assert error.value.message == "one\ntwo␛]0;x␇"


async def test_a_lost_answer_is_not_a_refusal() -> None:
    with pytest.raises(Unsure):
        await gate(Told(TimeoutError("late"))).submit(WHO, ASKED, SCRIPT)


async def test_nobody_there_is_unavailable_and_nothing_happened(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as error:
        await gate(HelperChannel(tmp_path / "none")).submit(WHO, ASKED, SCRIPT)
    assert not isinstance(error.value, Unsure)


async def test_too_many_words_are_said_before_anyone_is_asked(tmp_path: Path) -> None:
    long = SubmitQuestion(
        options=("--x=" + "ü" * 4000,) * 3,
        arguments=("ü" * 4000,) * 3,
        script_sha256=ASKED.script_sha256,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(UsageError, match="too long"):
            await gate(HelperChannel(tmp_path / "s")).submit(WHO, long, SCRIPT)


async def test_the_channel_over_a_real_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve(reply: bytes) -> tuple[Question, bytes]:
            connection, _ = listener.accept()
            with connection:
                raw, passed = packet.receive(connection)
                script = os.pread(passed[0], 1000, 0)
                packet.close_all(passed)
                packet.send(connection, reply)
                return read_request(raw)[2], script

        asking = gate(HelperChannel(tmp_path / "s", timeout_s=60))
        reply = write_answer(Answer(outcome=Outcome.DONE, output="9"))
        served = asyncio.create_task(asyncio.to_thread(serve, reply))
        assert (await asking.submit(WHO, ASKED, SCRIPT)).job_id == 9
        assert await served == (ASKED, SCRIPT)
        for broken in (b"{}", b"x" * 70):
            served = asyncio.create_task(asyncio.to_thread(serve, broken))
            with pytest.raises(Unsure):
                await asking.submit(WHO, ASKED, SCRIPT)
            await served
