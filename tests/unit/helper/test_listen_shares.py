"""The gate's socket: one user's slow work holds up neither others nor anybody's cancelling."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.domain.grant import Act, Grant, written
from lattice.domain.privileged import VERBS, Answer, Outcome, read_answer, write_request
from lattice.domain.submission import CancelQuestion, SubmitQuestion
from lattice.helper import listen
from lattice.helper.gate import gate_shares
from lattice.helper.journal import HelperJournal, Peer
from lattice.helper.judge import AskedGrant, GrantClaim, GrantJudge, claim_of
from lattice.helper.listen import HelperListener
from tests.eventually import eventually

SUBMIT = SubmitQuestion(script_sha256="0" * 64)
CANCEL = CancelQuestion(jobs=("1",))
ACTS = {"submit": Act.SUBMIT, "cancel": Act.CANCEL}


def request(verb: str, user: str) -> bytes:
    grant = Grant(
        id="0" * 32, act=ACTS[verb], place="gate", subject="s", user=user, issued=0, expires=1
    )
    question = SUBMIT if verb == "submit" else CANCEL
    return write_request(written("key", grant.payload(), b"unsigned"), question)


class _Judge:
    """Believes every question; whether a signature holds is the true judge's."""

    def admit(self, _: Peer) -> None:
        return None

    def answered(self, _: AskedGrant) -> None:
        return None

    def judge(self, body: bytes) -> AskedGrant:
        claim = claim_of(body)
        grant = Grant(
            id="0" * 32,
            act=ACTS[claim.verb],
            place="gate",
            subject="s",
            user=claim.user,
            issued=0,
            expires=1,
        )
        return AskedGrant(VERBS[claim.verb], SUBMIT, grant)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is submitted for alice takes until the file `release` is there; all else no time."""
    monkeypatch.setattr(listen, "_SILENCE_S", 1.0)
    path = tmp_path / "socket"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(str(path))
    door.listen(64)
    door.setblocking(False)

    def act(asked: AskedGrant, _: Sequence[int]) -> tuple[Answer, Sequence[int]]:
        slow = asked.user == "alice" and asked.verb.name == "submit"
        (tmp_path / f"begun-{asked.user}-{asked.verb.name}-{os.getpid()}").touch()
        while slow and not (tmp_path / "release").exists():
            time.sleep(0.005)
        return Answer(outcome=Outcome.DONE), ()

    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            HelperListener(
                door,
                cast("GrantJudge", _Judge()),
                act,
                HelperJournal(SystemClock()),
                most_at_once=1,
                longest_s=120,
                shares=gate_shares(3),
            ).run()
        os._exit(0)
    door.close()
    yield path
    (tmp_path / "release").touch()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def ask(gate: Path, verb: str, user: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(120)
    connection.connect(str(gate))
    packet.send(connection, request(verb, user))
    return connection


def answer(connection: socket.socket) -> Answer:
    body, _ = packet.receive(connection)
    connection.close()
    return read_answer(body)


def begun(gate: Path, user: str, verb: str) -> int:
    return len(list(gate.parent.glob(f"begun-{user}-{verb}-*")))


@pytest.mark.spec("LIMIT-4", "ALLOC-3")
@pytest.mark.threat("profile-gate")
def test_a_user_with_a_slow_profile_has_two_places_and_others_have_theirs(gate: Path) -> None:
    slow = [ask(gate, "submit", "alice") for _ in range(6)]
    eventually(lambda: begun(gate, "alice", "submit") == 2)
    for _ in range(3):
        assert answer(ask(gate, "submit", "bob")).outcome is Outcome.DONE
    # Those that waited for a place of their own user's hear so, and why.
    for each in slow[2:]:
        refused = answer(each)
        assert refused.outcome is Outcome.BUSY
        assert "for this user" in refused.message
    assert begun(gate, "alice", "submit") == 2
    (gate.parent / "release").touch()
    assert [answer(each).outcome for each in slow[:2]] == [Outcome.DONE, Outcome.DONE]


@pytest.mark.spec("LIMIT-4", "ALLOC-4")
@pytest.mark.threat("profile-gate")
def test_cancelling_waits_for_no_submission(gate: Path) -> None:
    slow = [ask(gate, "submit", "alice") for _ in range(4)]
    eventually(lambda: begun(gate, "alice", "submit") == 2)
    for user in ("alice", "bob", "alice"):
        assert answer(ask(gate, "cancel", user)).outcome is Outcome.DONE
    for each in slow:
        each.close()


@pytest.mark.spec("LIMIT-4")
@pytest.mark.threat("profile-gate")
def test_no_user_has_more_than_a_few_waiting(gate: Path) -> None:
    slow = [ask(gate, "submit", "alice") for _ in range(2)]
    eventually(lambda: begun(gate, "alice", "submit") == 2)
    waiting = [ask(gate, "submit", "alice") for _ in range(8)]
    refused = answer(ask(gate, "submit", "alice"))
    assert refused.outcome is Outcome.BUSY
    assert "for this user" in refused.message
    assert answer(ask(gate, "submit", "bob")).outcome is Outcome.DONE
    for each in (*slow, *waiting):
        each.close()


def test_what_can_not_be_read_claims_nothing() -> None:
    assert claim_of(b"a question") == GrantClaim()
    assert claim_of(write_request("no grant", SUBMIT)) == GrantClaim()
    assert claim_of(request("cancel", "alice")) == GrantClaim("cancel", "alice")
