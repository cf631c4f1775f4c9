"""An attack on one's own node: the process that is about to be entered dies, and its number is
given to somebody else's, between the look and the entering. Run on a node, as root.

    python -m tests.e2e.pid_reuse 300

Says in JSON how often it was tried, how often the number was the same again, and how it went.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from lattice.base import packet
from lattice.base.clock import SystemClock
from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import Outcome
from lattice.helper.holder import HolderTimes
from lattice.helper.journal import HelperJournal
from lattice.helper.privilege import Kernel
from lattice.helper.sessions import HelperSessions
from lattice.helper.target import CHANGED
from lattice.helper.terminal_process import TerminalProcess
from lattice.helper.terminal_verbs import Attaching
from tests.e2e.entered import asking

_NODE, _JOB = "attack", 4242
_PLACES = ("before the namespaces", "before the owner")


class Nanny:
    """The parent of the target: on a word it has it die and another be born under its number."""

    def __init__(self, group: Path, owner: int, stranger: int) -> None:
        self.asks, self._hears = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._group, self._owner, self._stranger = group, owner, stranger
        if os.fork() == 0:
            with suppress(EOFError, KeyboardInterrupt):
                self._serve()
            os._exit(0)
        self._hears.close()

    def word(self, said: bytes) -> bytes:
        self.asks.send(said)
        return self.asks.recv(64)

    def _serve(self) -> None:
        self.asks.close()
        target = 0
        while word := self._hears.recv(64):
            if word == b"target":
                target = self._born(self._owner, self._group)
                self._hears.send(b"%d" % target)
            elif word == b"exchange":
                self._end(target)
                Path("/proc/sys/kernel/ns_last_pid").write_text(str(target - 1))
                other = self._born(self._stranger, None)
                self._hears.send(b"same" if other == target else b"other")
                target = other
            else:
                self._end(target)
                self._hears.send(b"gone")

    def _born(self, uid: int, group: Path | None) -> int:
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            if group is not None:
                (group / "cgroup.procs").write_text("0")
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(tell, b".")
            os.execv("/bin/sleep", ["sleep", "600"])
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)
        return pid

    def _end(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _grant(user: str) -> Grant:
    return Grant(
        id="0" * 32, act=Act.ATTACH, place=_NODE, subject="s", user=user, job_id=_JOB,
        issued=0, expires=1,
    )  # fmt: skip


def main(tries: int) -> None:
    account = pwd.getpwnam("alice")
    job = Path(f"/sys/fs/cgroup/freezer/slurm_{_NODE}/uid_{account.pw_uid}/job_{_JOB}")
    for step in ("step_0", "step_extern"):
        (job / step).mkdir(parents=True, exist_ok=True)
    nanny = Nanny(job / "step_0", account.pw_uid, pwd.getpwnam("bob").pw_uid)
    told = {"tries": tries, "reused": 0, "entered": 0, "refused": 0}
    nothing = os.open("/dev/null", os.O_WRONLY)
    kernel, clock = Kernel(), SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        holding = TerminalProcess(
            kernel, clock, HelperJournal(clock, nothing), HolderTimes(linger_s=0.1)
        )
        sessions = HelperSessions(Path(folder) / "sessions")
        for number in range(tries):
            place = _PLACES[number % len(_PLACES)]
            same, report = os.pipe()

            def exchange(where: str, place: str = place, report: int = report) -> None:
                if where == place:
                    os.write(report, nanny.word(b"exchange"))

            attaching = Attaching(kernel, _NODE, sessions, holding, at=exchange)
            nanny.word(b"target")
            answer, passed = attaching.enter(_grant("alice"), asking("true", terminal=""), ())
            told["reused"] += os.read(same, 64) == b"same"
            told["entered"] += answer.outcome is Outcome.DONE
            told["refused"] += answer.message == CHANGED
            packet.close_all((*passed, same, report))
            nanny.word(b"end")
    nanny.asks.close()
    for step in ("step_0", "step_extern", ""):
        with suppress(OSError):
            (job / step).rmdir()
    with suppress(OSError):
        job.parent.rmdir()
        job.parent.parent.rmdir()
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
