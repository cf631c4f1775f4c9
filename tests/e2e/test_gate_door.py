"""Whoever knocks at the gate without a right to: each attack is refused, told apart in the log."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lab.laboratory import Lab
from lab.users import SERVER_USER
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.gate import sealed
from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.grant import GATE, Act
from lattice.domain.privileged import (
    Answer,
    Enter,
    Outcome,
    ProbeMounts,
    Question,
    digest_of,
    verb_of,
    write_request,
)
from lattice.domain.submission import CancelQuestion, SubmitQuestion
from tests.contract.identities import being
from tests.e2e import knocking
from tests.eventually import eventually

pytestmark = pytest.mark.lab

SCRIPT = b"#!/bin/sh\n#SBATCH --hold\ntrue\n"
ASKED = SubmitQuestion(script_sha256=hashlib.sha256(SCRIPT).hexdigest())


class ClockAt:
    """Another time."""

    def __init__(self, offset_s: float) -> None:
        self._offset = timedelta(seconds=offset_s)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._offset

    def monotonic(self) -> float:
        return time.monotonic()


def knock(lab: Lab, body: bytes, script: bytes | None = SCRIPT, user: str = SERVER_USER) -> Answer:
    """One packet as that user, and the answer."""
    return pass_in(lab, body, [] if script is None else [sealed(script)], user)


def pass_in(lab: Lab, body: bytes, descriptors: Sequence[int], user: str = SERVER_USER) -> Answer:
    return knocking.knock(lab.gate.socket, body, descriptors, user)


@pytest.fixture
def sign(lab: Lab) -> Callable[..., str]:
    key = SigningKey.load(lab.gate.grant_key)

    def made(
        question: Question = ASKED, *, act: Act | None = None, place: str = GATE,
        user: str = "alice", offset_s: float = 0.0, key: SigningKey = key, digest: str = "",
    ) -> str:  # fmt: skip
        clock = ClockAt(offset_s) if offset_s else SystemClock()
        return GrantSigner(key, clock).issue(
            act or verb_of(question).act, place, subject="s", user=user,
            digest=digest or digest_of(question),
        )  # fmt: skip

    return made


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("gate-grant")
def test_a_granted_question_is_answered_once(lab: Lab, sign: Callable[..., str]) -> None:
    body = write_request(sign(), ASKED)
    first = knock(lab, body)
    assert (first.outcome, first.message) == (Outcome.DONE, "")
    again = knock(lab, body)
    assert (again.outcome, again.message) == (Outcome.REFUSED, "no grant for this")
    assert _last(lab)["reason"] == "it was used before"
    lab.jobs.cancel_all()


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("gate")
@pytest.mark.parametrize("user", ["alice", "nobody", "slurm"])
def test_another_user_does_not_even_reach_the_socket(lab: Lab, user: str) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        being(user),
        pytest.raises(PermissionError),
    ):
        connection.connect(str(lab.gate.socket))


@pytest.mark.spec("ALLOC-3")
@pytest.mark.threat("gate")
def test_even_root_is_not_the_user_it_serves(lab: Lab, sign: Callable[..., str]) -> None:
    answer = knock(lab, write_request(sign(), ASKED), user="root")
    assert answer.outcome is Outcome.REFUSED
    assert (_last(lab)["reason"], _last(lab)["peer_uid"]) == ("peer uid", 0)


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"act": Act.CANCEL}, "it grants cancel, not submit"),
        ({"act": Act.ATTACH}, "it grants attach, not submit"),
        ({"place": "n1"}, "it is for n1, not gate"),
        ({"digest": "0" * 64}, "it is for another question"),
        ({"key": SigningKey.generate()}, "signed by a key that is not known here"),
    ],
)
def test_a_grant_for_anything_else_is_refused(
    lab: Lab, sign: Callable[..., str], change: dict, reason: str
) -> None:
    answer = knock(lab, write_request(sign(**change), ASKED))
    assert (answer.outcome, answer.message) == (Outcome.REFUSED, "no grant for this")
    assert _last(lab)["reason"] == reason


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize("offset_s", [-70.0, 70.0])
def test_a_grant_of_another_time_is_refused_and_the_time_said(
    lab: Lab, sign: Callable[..., str], offset_s: float
) -> None:
    answer = knock(lab, write_request(sign(offset_s=offset_s), ASKED))
    assert answer.outcome is Outcome.UNTIMELY
    assert re.match(r"no grant for this at \d\d:\d\d:\d\d UTC", answer.message), answer
    assert "it is not valid at this time" in _last(lab)["reason"]


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("gate-grant")
def test_a_changed_question_is_refused(lab: Lab, sign: Callable[..., str]) -> None:
    changed = replace(ASKED, options=("--partition=interactive",))
    assert knock(lab, write_request(sign(ASKED), changed)).outcome is Outcome.REFUSED
    other = b"#!/bin/sh\ntouch /tmp/never\n"
    answer = knock(lab, write_request(sign(), ASKED), script=other)
    assert (answer.outcome, answer.message) == (
        Outcome.BAD_QUESTION,
        "the script is not the one that was granted",
    )


@pytest.mark.spec("ALLOC-3", "AUTH-9")
@pytest.mark.threat("server", "gate")
@pytest.mark.parametrize("user", ["root", "slurm", SERVER_USER, "daemon", "absent", "alice\0root"])
def test_a_grant_that_names_a_system_account_does_nothing(
    lab: Lab, sign: Callable[..., str], user: str
) -> None:
    for question in (ASKED, CancelQuestion(jobs=("1",))):
        script = SCRIPT if question is ASKED else None
        answer = knock(lab, write_request(sign(question, user=user), question), script)
        assert answer.outcome is Outcome.ACCOUNT_REFUSED, answer


@pytest.mark.spec("AUTH-9")
@pytest.mark.parametrize(
    "question", [Enter("0" * 32, (), "xterm", 24, 80, "", False), ProbeMounts(100)]
)
def test_a_verb_of_a_node_is_not_the_gates(
    lab: Lab, sign: Callable[..., str], question: Question
) -> None:
    answer = knock(lab, write_request(sign(question), question), None)
    assert answer.outcome is Outcome.NOT_OFFERED
    assert f"`{verb_of(question).name}`" in answer.message


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"\xff" * 10, b"[" * 60000, b"x" * (64 * 1024 + 1), b'{"grant":1,"verb":2}'],
)
def test_what_is_no_question_is_refused_and_the_gate_goes_on(
    lab: Lab, sign: Callable[..., str], body: bytes
) -> None:
    if body:
        assert knock(lab, body).outcome is Outcome.BAD_QUESTION
    assert knock(lab, write_request(sign(), ASKED)).outcome is Outcome.DONE
    lab.jobs.cancel_all()


def test_only_one_sealed_script_is_taken(lab: Lab, sign: Callable[..., str]) -> None:
    open_memory = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.write(open_memory, SCRIPT)
    answer = pass_in(lab, write_request(sign(), ASKED), [open_memory])
    assert answer.message == "the script is not sealed"
    reader, writer = os.pipe()
    answer = pass_in(lab, write_request(sign(), ASKED), [reader])
    os.close(writer)
    assert answer.message == "the script is no file of an allowed size"
    for count in (0, 2):
        many = [sealed(SCRIPT) for _ in range(count)]
        assert pass_in(lab, write_request(sign(), ASKED), many).outcome is Outcome.BAD_QUESTION
    many = [sealed(SCRIPT) for _ in range(packet.MOST_DESCRIPTORS + 3)]
    assert pass_in(lab, write_request(sign(), ASKED), many).outcome is Outcome.BAD_QUESTION
    # Descriptors that nobody wants are closed: its three, the door, and what it waits with.
    held = Path(f"/proc/{lab.gate.process.pid}/fd")
    eventually(lambda: len(list(held.iterdir())), lambda count: count <= 5)


@pytest.mark.spec("AUTH-9")
def test_keys_are_exchanged_without_a_restart(lab: Lab, sign: Callable[..., str]) -> None:
    new = SigningKey.generate()
    kept = lab.gate.public_keys.read_text()
    pid = lab.gate.process.pid
    try:
        lab.gate.public_keys.write_text(kept + "# and the next\n" + _line(new))
        for grant in (sign(), sign(key=new)):
            assert knock(lab, write_request(grant, ASKED)).outcome is Outcome.DONE
        lab.gate.public_keys.write_text(_line(new))
        assert knock(lab, write_request(sign(), ASKED)).outcome is Outcome.REFUSED
        lab.gate.public_keys.write_text("nonsense\n")
        assert knock(lab, write_request(sign(key=new), ASKED)).outcome is Outcome.DONE
    finally:
        lab.gate.public_keys.write_text(kept)
    assert lab.gate.process.pid == pid
    lab.jobs.cancel_all()


@pytest.mark.spec("AUTH-9")
def test_a_grant_from_before_a_restart_is_not_believed(lab: Lab, sign: Callable[..., str]) -> None:
    old = write_request(sign(), ASKED)
    lab.gate.process.restart()
    answer = knock(lab, old)
    assert answer.outcome is Outcome.UNTIMELY
    assert "from before this helper began" in _last(lab)["reason"]
    time.sleep(1.1)


def test_silent_visitors_keep_nobody_out(lab: Lab, sign: Callable[..., str]) -> None:
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(30)]
    try:
        with being(SERVER_USER):
            for each in silent:
                each.connect(str(lab.gate.socket))
        assert knock(lab, write_request(sign(), ASKED)).outcome is Outcome.DONE
    finally:
        for each in silent:
            each.close()
    lab.jobs.cancel_all()


def _line(key: SigningKey) -> str:
    from base64 import b64encode

    return b64encode(key.public).decode() + "\n"


def _last(lab: Lab) -> dict:
    lines = lab.gate.process.log_file.read_text().splitlines()
    found: dict = json.loads([each for each in lines if '"event": "refused"' in each][-1])
    return found
