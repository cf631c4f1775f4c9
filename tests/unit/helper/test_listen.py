"""The helper's door: whoever comes while all places are taken waits for one, and not for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import VERBS, Answer, Outcome, Verb, read_answer
from lattice.helper import listen
from lattice.helper.journal import HelperJournal, Peer
from lattice.helper.judge import AskedGrant, GrantJudge, Refusal
from lattice.helper.listen import HelperListener
from tests.eventually import eventually

Begin = Callable[..., Path]


class _Judge:
    """Lets everything pass, but for a peer it was told not to admit."""

    def __init__(self, verb: Verb, *, admits: bool, grant: Grant | None) -> None:
        self._verb = verb
        self._grant = grant
        self._admits = admits

    def admit(self, _: Peer) -> None:
        if not self._admits:
            raise Refusal(Outcome.REFUSED, "not a user this helper serves", "peer uid")

    def answered(self, _: AskedGrant) -> None:
        return None

    def judge(self, _: bytes) -> AskedGrant:
        return AskedGrant(self._verb, None, self._grant)  # type: ignore[arg-type]


@pytest.fixture
def listening() -> list[int]:
    """The pids of those that were begun and not waited for."""
    return []


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: list[int]) -> Iterator[Begin]:

    def beginning(
        takes_s: float,
        *,
        silence_s: float = 5.0,
        admits: bool = True,
        name: str = "open_output",
        slow_s: float | None = None,
        grant: Grant | None = None,
    ) -> Path:
        """One place; each answer takes so long, or until the file `release` is there.

        Its log is the file `log`.
        """
        monkeypatch.setattr(listen, "_SILENCE_S", silence_s)
        path = tmp_path / "door"
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.bind(str(path))
        door.listen(64)
        door.setblocking(False)

        def act(_: AskedGrant, __: Sequence[int]) -> tuple[Answer, Sequence[int]]:
            (tmp_path / "begun").touch()
            (tmp_path / f"begun-{os.getpid()}").touch()
            until = time.monotonic() + takes_s
            while time.monotonic() < until and not (tmp_path / "release").exists():
                time.sleep(0.005)
            return Answer(outcome=Outcome.DONE), ()

        verb = VERBS[name]
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                judge = cast("GrantJudge", _Judge(verb, admits=admits, grant=grant))
                HelperListener(
                    door,
                    judge,
                    act,
                    HelperJournal(
                        SystemClock(), os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
                    ),
                    most_at_once=1,
                    longest_s=120,
                    stay=lambda _, connection: echo(connection),
                    longest_stay_s=120,
                    slow_s=slow_s,
                ).run()
            os._exit(0)
        listening.append(pid)
        door.close()
        return path

    yield beginning
    (tmp_path / "release").touch()
    for pid in listening:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def echo(connection: socket.socket) -> None:
    while body := packet.receive(connection)[0]:
        packet.send(connection, body)


def _ask(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(120)
    connection.connect(str(path))
    packet.send(connection, b"a question")
    return connection


def _told(connection: socket.socket) -> Outcome:
    body, _ = packet.receive(connection)
    connection.close()
    return read_answer(body).outcome


def test_ten_who_come_at_once_are_answered_in_turn(begin: Begin) -> None:
    path = begin(0.02)
    assert {_told(each) for each in [_ask(path) for _ in range(10)]} == {Outcome.DONE}


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("server")
def test_an_act_is_written_down_with_the_caller_that_the_grant_names(begin: Begin) -> None:
    """Whoever signed it: who holds the key of grants does not act on a job unseen."""
    grant = Grant(
        id="7" * 32, act=Act.ATTACH, place="n1", subject="sub-1", user="alice", job_id=42,
        issued=0, expires=1,
    )  # fmt: skip
    path = begin(0.0, name="enter", grant=grant)
    assert _told(_ask(path)) is Outcome.DONE
    (line,) = path.with_name("log").read_text().splitlines()
    told = json.loads(line)
    facts = ("event", "verb", "grant", "subject", "user", "job", "outcome")
    assert [told[each] for each in facts] == [
        "act", "enter", grant.id, "sub-1", "alice", "42", "done",
    ]  # fmt: skip


def _wait_for_a_place_in_vain(begin: Begin) -> float:
    path = begin(60.0, silence_s=0.3)
    first = _ask(path)
    eventually(path.with_name("begun").exists)
    begun = time.monotonic()
    assert _told(_ask(path)) is Outcome.BUSY
    took_s = time.monotonic() - begun
    path.with_name("release").touch()
    assert _told(first) is Outcome.DONE
    return took_s


def test_who_waited_for_long_hears_that_it_is_busy(begin: Begin) -> None:
    _wait_for_a_place_in_vain(begin)


@pytest.mark.timing
def test_who_waited_for_its_time_hears_within_two_seconds_that_it_is_busy(begin: Begin) -> None:
    assert 0.2 < _wait_for_a_place_in_vain(begin) < 1.9


def _refuse_a_stranger(begin: Begin) -> float:
    path = begin(60.0, admits=False)
    begun = time.monotonic()
    assert _told(_ask(path)) is Outcome.REFUSED
    took_s = time.monotonic() - begun
    assert not path.with_name("begun").exists(), "nothing was done for it"
    return took_s


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper")
def test_a_stranger_is_refused_and_waits_in_nobodys_way(begin: Begin) -> None:
    _refuse_a_stranger(begin)


@pytest.mark.timing
@pytest.mark.spec("AUTH-9")
def test_a_stranger_is_refused_within_a_second(begin: Begin) -> None:
    assert _refuse_a_stranger(begin) < 0.9


def test_one_who_stays_takes_no_place_from_others_and_the_oldest_of_two_makes_room(
    begin: Begin,
) -> None:
    path = begin(0.0, name="watch_counters")
    staying = [_ask(path), _ask(path)]
    for each in staying:
        assert read_answer(packet.receive(each)[0]).outcome is Outcome.DONE
        for word in (b"one", b"two"):
            packet.send(each, word)
            assert packet.receive(each)[0] == word
    oldest, second = staying
    third = _ask(path)
    assert read_answer(packet.receive(third)[0]).outcome is Outcome.DONE
    assert packet.receive(oldest)[0] == b"", "it is over"
    for each in (second, third):
        packet.send(each, b"three")
        assert packet.receive(each)[0] == b"three"
    for each in (oldest, second, third):
        each.close()


def test_it_ends_while_a_question_hangs(begin: Begin, listening: list[int]) -> None:
    path = begin(3600.0, slow_s=0.05)
    with _ask(path):
        eventually(path.with_name("begun").exists)
        os.kill(listening[0], signal.SIGTERM)
        ended = eventually(lambda: os.waitpid(listening[0], os.WNOHANG)[0])
        assert ended == listening.pop(0)


def test_a_question_that_takes_long_keeps_no_place_of_others(begin: Begin) -> None:
    """The first is under way for as long as the second needs to be answered."""
    path = begin(60.0, slow_s=0.05)
    first, second = _ask(path), _ask(path)
    eventually(lambda: len(list(path.parent.glob("begun-*"))), lambda begun: begun == 2)
    path.with_name("release").touch()
    assert {_told(first), _told(second)} == {Outcome.DONE}


@pytest.mark.threat("helper")
def test_a_socket_of_systemd_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as given:
        given.bind(str(path))
        for mode in (0o666, 0o662, 0o664):
            path.chmod(mode)
            with pytest.raises(listen.SocketRefused, match="closed to others"):
                listen.adopt(given)
        path.chmod(0o660)
        assert listen.adopt(given) is given
        assert not given.getblocking()
