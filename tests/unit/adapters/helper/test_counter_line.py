"""The agent's end of a conversation about counters: bounded in time, and never a wrong answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lattice.adapters.helper.counters import HelperCounterLine
from lattice.base import packet
from lattice.domain.counters import (
    IO,
    MOST_JOBS,
    CounterAnswer,
    CountersUnavailable,
    read_asking,
    write_telling,
)
from lattice.domain.privileged import Answer, Outcome, read_request, write_answer
from tests.fakes.manual_clock import ManualClock

Talk = Callable[[socket.socket], None]


class Door:
    """A helper that is none: each connection is dealt with by the next of what a test gives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.talks: list[Talk] = []
        self.came = 0
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(str(path))
        self.door.listen(8)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.door.accept()
            except OSError:
                return
            with connection:
                self.came += 1
                _, verb, _ = read_request(packet.receive(connection)[0])
                assert verb.name == "watch_counters"
                self.talks.pop(0)(connection)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path / "door")
    yield made
    made.door.shutdown(socket.SHUT_RDWR)
    made.door.close()
    made.thread.join(20)


def _welcome(connection: socket.socket) -> None:
    packet.send(connection, write_answer(Answer(outcome=Outcome.DONE)))


def telling(times: int = 1_000) -> Talk:
    """Answers so many questions with the number of each job, and then goes."""

    def talk(connection: socket.socket) -> None:
        _welcome(connection)
        for _ in range(times):
            raw = packet.receive(connection)[0]
            if not raw:
                return
            asking = read_asking(raw)
            for each in write_telling(CounterAnswer({IO: {job: [[job]] for job in asking.jobs}})):
                packet.send(connection, each)

    return talk


def saying(raw: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        _welcome(connection)
        packet.receive(connection)
        connection.send(raw)
        packet.receive(connection)

    return talk


def test_one_conversation_serves_many_questions_and_a_new_one_follows_its_end(door: Door) -> None:
    door.talks = [telling(2), telling()]
    line = HelperCounterLine(door.path, ManualClock())
    for _ in range(4):
        assert line.ask([IO], [42, 43]).of(IO) == {42: [[42]], 43: [[43]]}
    assert door.came == 2
    line.close()


def test_more_jobs_than_a_question_holds_are_asked_for_in_parts(door: Door) -> None:
    door.talks = [telling()]
    line = HelperCounterLine(door.path, ManualClock())
    jobs = range(1, 2 * MOST_JOBS + 5)
    assert line.ask([IO], jobs).of(IO) == {job: [[job]] for job in jobs}
    line.close()


@pytest.mark.spec("SRC-2")
def test_no_helper_is_said_at_once_and_looked_for_again_later(tmp_path: Path) -> None:
    clock = ManualClock()
    line = HelperCounterLine(tmp_path / "door", clock)
    with pytest.raises(CountersUnavailable) as caught:
        line.ask([IO], [42])
    assert caught.value.reason == "lattice-helper is not there"
    assert caught.value.last_error == "No such file or directory"
    door = Door(tmp_path / "door")
    door.talks = [telling()]
    with pytest.raises(CountersUnavailable, match="is not there"):
        line.ask([IO], [42])
    assert door.came == 0
    clock.advance(6)
    assert line.ask([IO], [42]).of(IO) == {42: [[42]]}
    line.close()
    door.door.shutdown(socket.SHUT_RDWR)
    door.door.close()


def _give_up_a_helper_that_hangs(door: Door) -> float:
    free = threading.Event()

    def hang(connection: socket.socket) -> None:
        _welcome(connection)
        packet.receive(connection)
        free.wait(120)

    door.talks = [hang, telling()]
    clock = ManualClock()
    line = HelperCounterLine(door.path, clock, timeout_s=0.1)
    begun = time.monotonic()
    with pytest.raises(CountersUnavailable, match="did not answer in time"):
        line.ask([IO], [42])
    took_s = time.monotonic() - begun
    clock.advance(6)
    free.set()
    line = HelperCounterLine(door.path, clock, timeout_s=60)
    assert line.ask([IO], [43]).of(IO) == {43: [[43]]}
    line.close()
    return took_s


@pytest.mark.spec("SRC-2")
def test_one_that_hangs_is_given_up_and_its_late_answer_is_nobody_s(door: Door) -> None:
    _give_up_a_helper_that_hangs(door)


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
def test_one_that_hangs_is_given_up_within_ten_seconds(door: Door) -> None:
    assert _give_up_a_helper_that_hangs(door) < 10


@pytest.mark.spec("SRC-2")
def test_a_refusal_is_the_reason(door: Door) -> None:
    refusal = Answer(outcome=Outcome.BUSY, message="too many\x1b[2J at once")
    door.talks = [lambda connection: packet.send(connection, write_answer(refusal))]
    line = HelperCounterLine(door.path, ManualClock())
    with pytest.raises(CountersUnavailable, match="refuses") as caught:
        line.ask([IO], [42])
    assert caught.value.last_error == "too many␛[2J at once"
    line.close()


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "raw",
    [b"x", b"{}", b'{"told":{"io":{"x":[]}},"failed":{},"more":false}', b"\0" * 70_000],
)
def test_an_answer_that_can_not_be_is_no_answer(door: Door, raw: bytes) -> None:
    door.talks = [saying(raw)]
    line = HelperCounterLine(door.path, ManualClock())
    with pytest.raises(CountersUnavailable, match="said what can't be"):
        line.ask([IO], [42])
    line.close()


def test_one_that_goes_at_once_is_not_asked_for_ever(door: Door) -> None:
    door.talks = [_welcome]
    line = HelperCounterLine(door.path, ManualClock())
    with pytest.raises(CountersUnavailable, match="ended the conversation"):
        line.ask([IO], [42])
    assert door.came == 1
    line.close()
