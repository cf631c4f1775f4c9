"""The child that waits for the next terminal: when it is forked, what it has, what ends it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.domain.grant import Act, Grant, written
from lattice.domain.privileged import Answer, Enter, Outcome, read_answer, write_request
from lattice.helper.journal import HelperJournal
from lattice.helper.judge import AskedGrant
from lattice.helper.responder import Responder
from lattice.helper.terminal_children import AHEAD_S, TerminalChildren
from lattice.helper.terminal_process import close_others
from tests.eventually import eventually
from tests.fakes.manual_clock import ManualClock

GRANT = Grant(
    id="0" * 32, act=Act.ATTACH, place="n1", subject="s", user="alice", job_id=42,
    issued=0, expires=1,
)  # fmt: skip
QUESTION = Enter("a" * 32, (), "xterm", 24, 80, "", False)
BODY = write_request(written("key", GRANT.payload(), b"unsigned"), QUESTION)


def act(asked: AskedGrant, descriptors: Sequence[int]) -> tuple[Answer, Sequence[int]]:
    rehearsed = os.environ.get("REHEARSED", "no")
    facts = f"{os.getpid()} {asked.user} {len(descriptors)} {rehearsed}"
    return Answer(outcome=Outcome.DONE, output=facts), ()


class Opener:
    def rehearse(self) -> None:
        os.environ["REHEARSED"] = "yes"

    def hold(self) -> None:
        close_others(())
        signal.pause()


class Bench:
    """The children of this process, and what they answered."""

    def __init__(self, log: Path) -> None:
        self.clock = ManualClock()
        journal = HelperJournal(SystemClock(), os.open(log, os.O_WRONLY | os.O_CREAT))
        self.children = TerminalChildren(
            Responder(act, journal), Opener(), journal, monotonic=self.clock.monotonic
        )
        self.pids: set[int] = set()

    def ask(self, *descriptors: int) -> tuple[int, str]:
        """The pid that got the request, and the answer's text."""
        client, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with client, connection:
            pid = self.children.start(BODY, connection, descriptors)
            self.pids.add(pid)
            answer = read_answer(packet.receive(client)[0])
        assert answer.outcome is Outcome.DONE
        return pid, answer.output

    def waiting(self) -> int:
        """The pid of the waiting child; 0 if there is none."""
        child = self.children._waiting
        return child.pid if child is not None else 0

    def tend_later(self, seconds: float = AHEAD_S, *, idle: bool = True) -> int:
        self.clock.advance(seconds)
        self.children.tend(idle=idle)
        self.pids |= {self.waiting()} - {0}
        return self.waiting()

    def end(self) -> None:
        self.children.close_copies()
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        os.close(self.children._journal.descriptor)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "log")
    yield made
    made.end()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_before_the_first_request_no_child_waits(bench: Bench) -> None:
    assert not bench.children.is_due
    assert bench.tend_later(3600.0) == 0


def test_the_next_request_goes_to_the_child_that_waits(bench: Bench) -> None:
    first, answer = bench.ask()
    assert answer == f"{first} alice 0 no"
    waiting = bench.tend_later()
    assert waiting not in {0, first}
    assert bench.ask() == (waiting, f"{waiting} alice 0 yes")
    assert bench.waiting() == 0
    assert bench.tend_later() not in {0, first, waiting}


def test_descriptors_of_a_request_are_passed_on(bench: Bench) -> None:
    assert bench.ask(0, 0)[1].split()[2] == "2"


def test_no_child_is_forked_while_a_terminal_opens_or_requests_wait(bench: Bench) -> None:
    bench.ask()
    assert bench.tend_later(AHEAD_S / 2) == 0
    assert bench.tend_later(idle=False) == 0
    assert bench.children.is_due
    assert bench.tend_later(0.0) != 0
    assert not bench.children.is_due


def test_a_child_that_dies_is_replaced(bench: Bench) -> None:
    bench.ask()
    waiting = bench.tend_later()
    os.kill(waiting, signal.SIGKILL)
    eventually(lambda: bench.tend_later(0.0), lambda pid: pid == 0)
    assert bench.tend_later() == 0, "not at once: what killed it may kill the next"
    assert bench.tend_later(60.0) not in {0, waiting}


def test_a_request_survives_the_death_of_the_child_that_waits(bench: Bench) -> None:
    bench.ask()
    waiting = bench.tend_later()
    os.kill(waiting, signal.SIGKILL)
    os.waitid(os.P_PID, waiting, os.WEXITED | os.WNOWAIT)
    pid, answer = bench.ask()
    assert pid != waiting
    assert answer == f"{pid} alice 0 no"


def test_a_child_that_waits_is_replaced_when_the_helper_s_state_changes(bench: Bench) -> None:
    bench.children.renew()
    assert not bench.children.is_due, "there was none to replace"
    bench.ask()
    waiting = bench.tend_later()
    bench.children.renew()
    assert bench.tend_later() not in {0, waiting}
    eventually(lambda: bench.tend_later(0.0) and is_gone(waiting))


def test_a_child_takes_a_slot_until_it_holds_its_terminal(bench: Bench) -> None:
    pid, _ = bench.ask()
    eventually(lambda: bench.children.has_answered(pid))
    assert not bench.children.has_answered(pid), "once"
    bench.children.tend(idle=False)
    assert not is_gone(pid), "it holds the terminal"
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: bench.tend_later(0.0, idle=False) == 0 and is_gone(pid))


def links(folder: Path) -> dict[int, str]:
    """Its descriptors; one may be closed meanwhile."""
    found = {}
    for each in folder.iterdir():
        with suppress(FileNotFoundError):
            found[int(each.name)] = str(each.readlink())
    return found


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("waiting-child")
def test_a_child_that_waits_has_one_socket_and_nothing_of_a_request(bench: Bench) -> None:
    with socket.socket() as of_helper:
        bench.ask()
        pid = bench.tend_later()
        number = of_helper.fileno()
        folder = Path(f"/proc/{pid}/fd")
        # Standard error, and the test's own journal, besides the socket.
        open_ = eventually(lambda: links(folder), lambda found: len(found) == 5)
        assert number not in open_
    assert open_[0] == open_[1] == "/dev/null"
    assert sum(link.startswith("socket:") for link in open_.values()) == 1
    assert os.getsid(pid) == pid


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("waiting-child")
@pytest.mark.parametrize("number", [signal.SIGKILL, None])
def test_a_child_that_waits_ends_with_the_helper(tmp_path: Path, number: int | None) -> None:
    reading, writing = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            bench = Bench(tmp_path / "log")
            holder, _ = bench.ask()
            os.write(writing, b"%d %d" % (holder, bench.tend_later()))
            if number is not None:
                os.kill(os.getpid(), number)
            bench.children.close()
        finally:
            os._exit(0)
    os.close(writing)
    holder, waiting = map(int, os.read(reading, 64).split())
    os.close(reading)
    os.waitpid(helper, 0)
    eventually(lambda: is_gone(waiting))
    # Its terminal outlives the helper. Nobody else would end it.
    os.kill(holder, signal.SIGKILL)
