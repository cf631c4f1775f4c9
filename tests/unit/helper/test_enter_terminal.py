"""A terminal in a job, from the helper's socket to the program, as root on the real kernel.

The job is a control group that is named as Slurm names it, with one process of its owner.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.domain.grant import Act, Grant, written
from lattice.domain.privileged import Answer, Enter, Outcome, read_answer, write_request
from lattice.helper.holder import HolderTimes
from lattice.helper.job_entry import Foresight
from lattice.helper.journal import HelperJournal, Peer
from lattice.helper.judge import AskedGrant, GrantJudge, read_unchecked
from lattice.helper.listen import HelperListener
from lattice.helper.main import _node
from lattice.helper.privilege import Capability, Kernel
from lattice.helper.sessions import HelperSessions
from lattice.helper.terminal_process import TerminalProcess
from lattice.helper.terminal_verbs import Attaching
from tests.eventually import eventually
from tests.fakes.terminal_client import TerminalClient

_FREEZER = Path("/sys/fs/cgroup/freezer")
OWNER, JOB = "nobody", 4245

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(_FREEZER, os.W_OK),
    reason="only root enters a job, and the test's job is a group of v1",
)


class _Judge:
    """Believes every request; whether a signature holds is the true judge's."""

    def admit(self, _: Peer) -> None:
        return None

    def answered(self, _: AskedGrant) -> None:
        return None

    def judge(self, body: bytes) -> AskedGrant:
        return read_unchecked(body)


class Node:
    """A helper with one slot, and a job of `OWNER`."""

    def __init__(self, folder: Path) -> None:
        self.name = f"t{os.getpid()}"
        self.socket = folder / "socket"
        self.sessions = folder / "sessions"
        self.log = folder / "log"
        self._base = _FREEZER / f"slurm_{self.name}"
        self.job = self._base / f"uid_{pwd.getpwnam(OWNER).pw_uid}" / f"job_{JOB}"
        (self.job / "step_extern").mkdir(parents=True)
        (self.job / "step_0").mkdir()
        self._clients: list[TerminalClient] = []
        self.work = subprocess.Popen(
            [
                *("/bin/sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "join"),
                *(str(self.job / "step_0/cgroup.procs"), "setpriv", f"--reuid={OWNER}"),
                *("--regid=nogroup", "--clear-groups", "--", "sleep", "600"),
            ]
        )
        comm = Path(f"/proc/{self.work.pid}/comm")
        eventually(comm.read_text, lambda name: name == "sleep\n")
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        endpoint.bind(str(self.socket))
        endpoint.listen(8)
        endpoint.setblocking(False)
        self.helper = os.fork()
        if self.helper == 0:
            with suppress(BaseException):
                self._serve(endpoint)
            os._exit(0)
        endpoint.close()

    def _serve(self, endpoint: socket.socket) -> None:
        clock, kernel = SystemClock(), Kernel()
        journal = HelperJournal(clock, os.open(self.log, os.O_WRONLY | os.O_CREAT))
        attaching = Attaching(
            kernel,
            self.name,
            HelperSessions(self.sessions),
            TerminalProcess(kernel, clock, journal, HolderTimes(linger_s=0.1)),
            foresight=Foresight(),
        )
        HelperListener(
            endpoint,
            cast("GrantJudge", _Judge()),
            _node(kernel, None, attaching),
            journal,
            most_at_once=1,
            longest_s=60,
            opener=attaching,
            slow_s=2.0,
        ).run()

    def ask(self, session: str, *argv: str) -> tuple[Answer, list[int]]:
        grant = Grant(
            id="0" * 32, act=Act.ATTACH, place=self.name, subject="s", user=OWNER, job_id=JOB,
            issued=0, expires=1,
        )  # fmt: skip
        question = Enter(session * 32, argv, "xterm", 24, 80, "", False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(120)
            connection.connect(str(self.socket))
            body = write_request(written("key", grant.payload(), b"unsigned"), question)
            packet.send(connection, body)
            raw, passed = packet.receive(connection)
        return read_answer(raw), passed

    def enter(self, session: str, *argv: str) -> TerminalClient:
        answer, passed = self.ask(session, *argv)
        assert answer.outcome is Outcome.DONE, answer.message
        client = TerminalClient(socket.socket(fileno=passed[0]))
        self._clients.append(client)
        client.until(lambda: client.started is not None)
        return client

    def children(self) -> set[int]:
        """Of the helper: those that wait, answer or hold."""
        listed = Path(f"/proc/{self.helper}/task/{self.helper}/children").read_text()
        return set(map(int, listed.split()))

    def end(self) -> None:
        for client in self._clients:
            client.cut()
        holders = self.children()
        os.kill(self.helper, signal.SIGKILL)
        os.waitpid(self.helper, 0)
        for pid in holders:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.work.kill()
        self.work.wait()
        for procs in self._base.rglob("cgroup.procs"):
            for pid in procs.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            eventually(procs.read_text, lambda left: not left)
        for folder, _, _ in os.walk(self._base, topdown=False):
            Path(folder).rmdir()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    tmp_path.chmod(0o700)
    made = Node(tmp_path)
    yield made
    made.end()


def holder_of(client: TerminalClient) -> int:
    assert client.started is not None
    status = Path(f"/proc/{client.started.pid}/status").read_text()
    return int(_fields(status)["PPid"])


def _fields(status: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


@pytest.mark.spec("ATTACH-1", "ATTACH-7")
def test_the_child_that_waited_becomes_the_holder_of_the_next_terminal(node: Node) -> None:
    first = node.enter("1", "cat")
    holder = {holder_of(first)}
    assert node.children() >= holder
    waiting = eventually(lambda: node.children() - holder)
    second = node.enter("2", "cat")
    assert {holder_of(second)} == waiting
    for client, text in ((first, b"one"), (second, b"two")):
        client.type(text + b"\n")
        client.see(text + b"\r\n" + text + b"\r\n")
        client.type(b"\x04")
        assert client.end().code == 0
    third = eventually(lambda: node.children() - waiting - holder)
    assert len(third) == 1, "one waits, however many were used"


@pytest.mark.spec("ATTACH-7")
@pytest.mark.threat("terminal-holder", "leaked-descriptor", "waiting-child")
def test_who_waited_keeps_nothing_when_it_holds(node: Node) -> None:
    first = node.enter("1", "cat")
    eventually(lambda: node.children() - {holder_of(first)})
    second = node.enter("2", "sh", "-c", "ls -m /proc/$$/fd; exec cat")
    second.see(b"0, 1, 2\r\n")
    check_holder(holder_of(first))
    check_holder(holder_of(second))


def check_holder(pid: int) -> None:
    folder, allowed = Path(f"/proc/{pid}"), 1 << Capability.KILL
    status = eventually(
        lambda: _fields((folder / "status").read_text()),
        lambda found: int(found["CapPrm"], 16) == allowed,
    )
    assert int(status["CapEff"], 16) == allowed
    assert status["NoNewPrivs"] == "1"
    # The terminal's connection, and the socket for the next one.
    links = eventually(
        lambda: [str(each.readlink()) for each in (folder / "fd").iterdir()],
        lambda found: sum(link.startswith("socket:") for link in found) == 2,
    )
    assert sum(link.endswith("ptmx") for link in links) == 1
    assert f"job_{JOB}" not in (folder / "cgroup").read_text()


@pytest.mark.spec("ATTACH-1")
def test_the_program_is_the_owner_s_and_in_the_job(node: Node) -> None:
    client = node.enter("1", "cat")
    assert client.started is not None
    folder = Path(f"/proc/{client.started.pid}")
    assert set(_fields((folder / "status").read_text())["Uid"].split()) == {
        str(pwd.getpwnam(OWNER).pw_uid)
    }
    of_freezer = [
        line for line in (folder / "cgroup").read_text().splitlines() if ":freezer:" in line
    ]
    assert of_freezer[0].endswith(f"/job_{JOB}/step_extern")
    assert str(client.started.pid) in (node.job / "step_extern/cgroup.procs").read_text().split()


@pytest.mark.spec("ATTACH-4")
def test_a_terminal_outlives_the_helper_and_what_waits_does_not(node: Node) -> None:
    client = node.enter("1", "cat")
    (waiting,) = eventually(lambda: node.children() - {holder_of(client)})
    os.kill(node.helper, signal.SIGSTOP)
    client.type(b"alone\n")
    client.see(b"alone\r\nalone\r\n")
    os.kill(node.helper, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{waiting}/fd").is_dir() or _is_zombie(waiting))
    client.type(b"again\n")
    client.see(b"again\r\nagain\r\n")
    client.type(b"\x04")
    assert client.end().code == 0


def _is_zombie(pid: int) -> bool:
    try:
        return _fields(Path(f"/proc/{pid}/status").read_text())["State"].startswith("Z")
    except OSError:
        return True


def test_what_can_t_be_run_leaves_no_session_and_frees_the_slot(node: Node) -> None:
    for _ in range(3):
        answer, passed = node.ask("1", "/no/such/program")
        assert (answer.outcome, passed) == (Outcome.FAILED, [])
        assert answer.message.startswith("/no/such/program can't be run inside this job")
    uid = pwd.getpwnam(OWNER).pw_uid
    assert list((node.sessions / str(uid)).iterdir()) == []
    assert node.enter("1", "cat").started is not None


def test_a_holder_takes_no_slot(node: Node) -> None:
    """The helper has one slot, and three terminals are open."""
    clients = [node.enter(session, "cat") for session in "123"]
    assert len({holder_of(client) for client in clients}) == 3


def test_a_second_terminal_of_the_same_name_is_refused(node: Node) -> None:
    node.enter("1", "cat")
    answer, _ = node.ask("1", "cat")
    assert replace(answer, notes=()) == Answer(
        outcome=Outcome.BUSY, message="This session exists already."
    )
