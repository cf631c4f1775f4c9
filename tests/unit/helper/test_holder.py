"""A holder with real programs at its hand, and connections that come and go."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lattice.domain.terminal import (
    EndCause,
    Resize,
    Signal,
    Started,
    StdinEnd,
    TerminalSignal,
)
from lattice.helper.holder import ADMITTED, Holder, HolderTimes
from lattice.helper.shell import LoginShell, Pipes, Terminal
from tests.eventually import eventually
from tests.fakes.manual_clock import ManualClock
from tests.fakes.terminal_client import TerminalClient
from tests.surroundings import forget

STARTED = Started(node="n1", user="u", step="0", pid=1, directory="/", accounted=True)
OWNER = {"user": "alice", "subject": "a-1", "job": "7"}


class Stage:
    """A holder, the program it holds, and the client of the moment."""

    def __init__(self, shell: LoginShell, folder: Path) -> None:
        self.clock = ManualClock()
        self.shell = shell
        self.job_over = False
        self.path = folder / "door"
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(str(self.path))
        self.door.listen(4)
        self.door.setblocking(False)
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.holder = Holder(
            shell,
            ours,
            self.door,
            belongs_to=OWNER,
            job_is_over=lambda: self.job_over,
            clock=self.clock,
            times=HolderTimes(),
        )
        self.holder.begin(STARTED)
        self.client = TerminalClient(theirs, self.turn)

    def turn(self) -> None:
        if not self.holder.over:
            self.holder.turn(0.0)

    def turn_until(self, wanted: Callable[[], bool], passing_s: float = 0.0) -> None:
        """Turn without a client; the clock moves on by so much in each turn."""

        def turned() -> bool:
            self.holder.turn(0.01)
            self.clock.advance(passing_s)
            return wanted()

        eventually(turned, pause_s=0.0)

    def knock(self, words: dict[str, str]) -> socket.socket | None:
        visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        visitor.connect(str(self.path))
        visitor.send(json.dumps(words).encode())
        self.holder.turn(0.0)
        visitor.settimeout(60)
        if visitor.recv(100) == ADMITTED:
            return visitor
        visitor.close()
        return None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        _wait(self.shell)
        self.shell.reap()
        for source in self.shell.streams.sources:
            source.close()
        self.shell.streams.end_input()
        os.close(self.shell.pidfd)
        self.holder._drop()
        self.client.cut()
        self.door.close()


def _wait(shell: LoginShell) -> None:
    look = select.poll()
    look.register(shell.pidfd, select.POLLIN)
    assert look.poll(120_000), "it does not end"


def in_terminal(*argv: str) -> LoginShell:
    pid, master = pty.fork()
    if pid == 0:
        forget()
        os.execvpe(argv[0], argv, {"PS1": "$ ", "PATH": os.environ["PATH"], "TERM": "dumb"})
    return LoginShell(pid, Terminal(master))


def in_pipes(*argv: str) -> LoginShell:
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        forget()
        os.setsid()
        for target, source in enumerate((stdin[0], stdout[1], stderr[1])):
            os.dup2(source, target)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    for each in (stdin[0], stdout[1], stderr[1]):
        os.close(each)
    # A holder begins when its program has a session of its own.
    while os.getsid(pid) != pid:
        time.sleep(0.001)
    return LoginShell(pid, Pipes.of(stdin[1], stdout[0], stderr[0]))


Begin = Callable[[LoginShell], Stage]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    stages: list[Stage] = []

    def beginning(shell: LoginShell) -> Stage:
        stages.append(Stage(shell, tmp_path))
        return stages[-1]

    yield beginning
    for stage in stages:
        stage.close()


SH = ("sh", "-i")


@pytest.mark.spec("ATTACH-3")
def test_a_shell_is_talked_to_and_its_code_is_heard(begin: Begin) -> None:
    stage = begin(in_terminal(*SH))
    client = stage.client
    client.see(b"$ ")
    assert client.started == STARTED
    client.type(b"stty size; echo said-$((20+1))\n")
    client.see(b"said-21")
    client.say(Resize(33, 121))
    client.type(b"stty size\n")
    client.see(b"33 121")
    client.type(b"exit 5\n")
    ended = client.end()
    assert (ended.cause, ended.code) == (EndCause.EXITED, 5)
    client.until(lambda: stage.holder.over)


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.spec("ATTACH-2")
def test_a_signal_goes_to_what_runs_in_front(begin: Begin) -> None:
    stage = begin(in_terminal(*SH))
    client = stage.client
    client.see(b"$ ")
    client.type(b"sleep 100; echo after-$?\n")
    # Not before it is the program: between fork and exec a shell may still take it for its own.
    client.until(lambda: _program(stage.shell.streams.foreground()) == "sleep")
    client.say(Signal(TerminalSignal.INT))
    client.see(b"$ ")
    client.type(b"sh -c 'trap \"echo got; exit 9\" TERM; echo up; while :; do sleep 0.01; done'\n")
    client.see(b"up\r\n")
    client.say(Signal(TerminalSignal.TERM))
    client.see(b"got\r\n")
    client.type(b"echo code-$?; exit\n")
    client.see(b"code-9")


@pytest.mark.spec("ATTACH-3")
def test_a_megabyte_is_pasted_whole(begin: Begin) -> None:
    stage = begin(in_terminal("sh", "-c", "stty -echo; echo ready; wc -c; exit 4"))
    client = stage.client
    client.see(b"ready\r\n")
    client.type((b"x" * 1023 + b"\n") * 1024)
    client.say(StdinEnd())
    client.see(b"1048576")
    assert client.end().code == 4


@pytest.mark.spec("ATTACH-3")
def test_pipes_are_binary_and_end_where_the_input_ends(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "cat; echo done >&2; exit 7"))
    sent = bytes(range(256)) * 8192
    stage.client.type(sent)
    stage.client.say(StdinEnd())
    ended = stage.client.end()
    assert (bytes(stage.client.output), bytes(stage.client.errors)) == (sent, b"done\n")
    assert (ended.cause, ended.code) == (EndCause.EXITED, 7)


@pytest.mark.spec("ATTACH-3")
def test_a_program_that_reads_nothing_loses_its_input_and_not_its_end(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "exec <&-; echo out; exit 1"))
    stage.client.type(b"x" * 300_000)
    assert stage.client.end().code == 1
    assert bytes(stage.client.output) == b"out\n"


def test_a_slow_reader_holds_the_program_and_not_the_memory(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "head -c 30000000 /dev/zero; exit 0"))
    for _ in range(2000):  # the client does not read
        stage.holder.turn(0.0)
    assert stage.holder._pipe._written_bytes < 4_000_000
    stage.client.end()
    assert len(stage.client.output) == 30_000_000


@pytest.mark.spec("ATTACH-4")
def test_after_a_cut_both_go_on_where_they_were(begin: Begin) -> None:
    stage = begin(in_pipes("cat"))
    client = stage.client
    for number in range(20):
        client.type(b"%d\n" % number * 1000)
        client.turn()
        client.cut()
        stage.holder.turn(0.0)
        stage.clock.advance(30)
        connection = stage.knock(OWNER)
        assert connection is not None
        client.connect(connection)
    client.say(StdinEnd())
    client.end()
    assert bytes(client.output) == b"".join(b"%d\n" % number * 1000 for number in range(20))


@pytest.mark.spec("ATTACH-4")
@pytest.mark.threat("agent")
@pytest.mark.parametrize("key", ["user", "subject", "job"])
def test_nobody_else_is_let_in(begin: Begin, key: str) -> None:
    stage = begin(in_pipes("cat"))
    assert stage.knock({**OWNER, key: "other"}) is None
    assert stage.knock({}) is None
    stage.client.type(b"still here\n")
    stage.client.see(b"still here\n")


@pytest.mark.spec("ATTACH-4")
def test_the_newest_connection_wins(begin: Begin) -> None:
    stage = begin(in_pipes("cat"))
    connection = stage.knock(OWNER)
    assert connection is not None
    stage.client.until(lambda: stage.client.closed)
    stage.client.connect(connection)
    stage.client.type(b"over the new one\n")
    stage.client.see(b"over the new one\n")


@pytest.mark.spec("ATTACH-4")
def test_a_client_that_does_not_come_back_is_hung_up_on_and_then_killed(begin: Begin) -> None:
    # The first ignores the hang-up, its child doesn't.
    script = "trap 'echo hung up' HUP; echo up; while :; do sleep 0.02; done"
    stage = begin(in_terminal("sh", "-c", script))
    stage.client.see(b"up\r\n")
    stage.client.cut()
    stage.holder.turn(0.0)
    stage.clock.advance(59)
    stage.holder.turn(0.0)
    connection = stage.knock(OWNER)
    assert connection is not None
    stage.client.connect(connection)
    stage.client.turn()
    assert b"hung up" not in stage.client.output
    stage.client.cut()
    stage.holder.turn(0.0)
    stage.clock.advance(60)
    stage.holder.turn(0.0)
    connection = stage.knock(OWNER)  # too late for the program, but not to hear of it
    assert connection is not None
    stage.client.connect(connection)
    stage.client.see(b"hung up")
    stage.clock.advance(29)
    stage.client.turn()
    assert stage.shell.status is None
    stage.clock.advance(1)
    stage.client.turn()
    _wait(stage.shell)
    connection = stage.knock(OWNER)
    assert connection is not None
    stage.client.connect(connection)
    ended = stage.client.end()
    assert (ended.cause, ended.code) == (EndCause.CLIENT_LOST, 128 + 9)


@pytest.mark.spec("ATTACH-4")
def test_a_connection_that_says_nothing_is_no_connection(begin: Begin) -> None:
    stage = begin(in_pipes("cat"))
    stage.clock.advance(15)
    stage.holder.turn(0.0)
    stage.client.until(lambda: stage.client.closed)
    stage.clock.advance(60)
    stage.holder.turn(0.0)
    _wait(stage.shell)
    assert stage.shell.status == -signal.SIGHUP


@pytest.mark.spec("ATTACH-4")
def test_a_client_that_says_its_last_hangs_up(begin: Begin) -> None:
    stage = begin(in_pipes("cat"))
    stage.client.turn()
    stage.client.hang_up()
    stage.client.turn()
    _wait(stage.shell)
    assert stage.shell.status == -signal.SIGHUP


@pytest.mark.spec("ATTACH-3")
@pytest.mark.parametrize("over", [True, False])
def test_killed_with_the_job_or_without_it(begin: Begin, over: bool) -> None:
    stage = begin(in_terminal(*SH))
    stage.client.see(b"$ ")
    stage.job_over = over
    os.kill(stage.shell.pid, signal.SIGKILL)
    _wait(stage.shell)
    stage.client.turn()
    stage.clock.advance(3)
    ended = stage.client.end()
    assert ended.code == 128 + 9
    assert ended.cause is (EndCause.JOB_ENDED if over else EndCause.SIGNALLED)


@pytest.mark.spec("ATTACH-3")
def test_a_program_that_lets_go_of_its_terminal_before_it_ends_is_not_hung_up_on(
    begin: Begin,
) -> None:
    """As `cat` and its kin do; the kernel would kill it for a terminal that is closed."""
    stage = begin(in_terminal("sh", "-c", "echo on; exec 0<&- 1>&- 2>&-; sleep 0.5; exit 3"))
    stage.client.see(b"on\r\n")
    ended = stage.client.end()
    assert (ended.cause, ended.code) == (EndCause.EXITED, 3)


@pytest.mark.spec("ATTACH-3")
def test_a_program_that_takes_its_terminal_again_hears_and_is_heard_again(begin: Begin) -> None:
    """Also what was typed while it had none; and it need not speak first."""
    let_go = "echo one; exec 0<&- 1>&- 2>&-; sleep 0.5"
    again = "exec 0<>/dev/tty 1>&0; read x; echo two; read y; exit $((x + y))"
    stage = begin(in_terminal("sh", "-c", f"{let_go}; {again}"))
    stage.client.see(b"one\r\n")
    (source,) = stage.shell.streams.sources
    stage.client.until(lambda: source.left)
    stage.client.type(b"4\n")
    stage.client.see(b"two\r\n")
    stage.client.type(b"3\n")
    assert stage.client.end().code == 7


@pytest.mark.spec("ATTACH-3")
def test_what_a_child_keeps_open_does_not_delay_the_end_for_ever(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "sleep 1000 & echo out; exit 2"))
    stage.client.see(b"out\n")
    _wait(stage.shell)
    stage.client.turn()
    assert stage.client.exit is None
    stage.clock.advance(3)
    assert stage.client.end().code == 2


@pytest.mark.spec("ATTACH-4")
def test_nonsense_from_the_other_end_ends_the_connection_alone(begin: Begin) -> None:
    stage = begin(in_pipes("cat"))
    stage.client.turn()
    stage.client._connection.send(b"\xff" * 40)
    stage.client.until(lambda: stage.client.closed)
    connection = stage.knock(OWNER)
    assert connection is not None
    stage.client.connect(connection)
    stage.client.type(b"well\n")
    stage.client.see(b"well\n")


@pytest.mark.spec("ATTACH-3", "ATTACH-4")
def test_the_last_word_waits_for_somebody_to_hear_it(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "echo last; exit 3"))
    stage.client.cut()
    _wait(stage.shell)
    stage.turn_until(lambda: stage.holder.cause is not None)
    stage.clock.advance(59)
    assert not stage.holder.over
    connection = stage.knock(OWNER)
    assert connection is not None
    stage.client.connect(connection)
    assert stage.client.end().code == 3
    stage.client.until(lambda: stage.holder.over)
    assert bytes(stage.client.output) == b"last\n"


@pytest.mark.spec("ATTACH-4")
def test_without_anybody_it_ends_after_a_minute(begin: Begin) -> None:
    stage = begin(in_pipes("sh", "-c", "head -c 9000000 /dev/zero & wait; exit 3"))
    stage.client.cut()
    stage.holder.turn(0.0)
    stage.turn_until(lambda: stage.holder.over, passing_s=1)
