"""A real root helper here, and processes in groups that are named as Slurm names them."""

from __future__ import annotations

import asyncio
import base64
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lab import users
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.probed import HelperProbes
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.privileged import (
    DumpStacks,
    ProbeMounts,
    Question,
    ReadTasks,
    digest_of,
    verb_of,
    write_request,
)
from lattice.domain.probed import MountsReport, StackReport, TaskReport
from tests.contract.identities import being
from tests.eventually import eventually

JOB = 4243
_JOIN = 'echo $$ >"$1" || exit 125; shift; exec "$@"'


class ProbingBench:
    """The helper, the key it believes, and what was started beside it."""

    def __init__(self, folder: Path, *options: str) -> None:
        users.ensure_accounts()
        self.folder = folder
        folder.chmod(0o755)
        self.node = f"t{os.getpid()}"
        self._started: list[subprocess.Popen[bytes]] = []
        freezer = Path("/sys/fs/cgroup/freezer")
        root = freezer if freezer.is_dir() else Path("/sys/fs/cgroup")
        self._base = root / f"slurm_{self.node}"
        key = SigningKey.generate()
        self._signer = GrantSigner(key, SystemClock())
        (folder / "keys").write_text(base64.b64encode(key.public).decode())
        self.socket = folder / "socket"
        self.log = folder / "helper.log"
        with self.log.open("wb") as log:
            self.helper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-m", "lattice.helper", "--role", "node"),
                    *("--place", self.node, "--socket", str(self.socket), "--no-latency"),
                    *("--allow-user", users.AGENT_USER, "--grant-keys", str(folder / "keys")),
                    *options,
                ],
                stderr=log,
            )
        eventually(self.socket.exists, bool)
        time.sleep(1.1)  # grants of the second in which it started are not believed
        self.port = HelperProbes(HelperChannel(self.socket, timeout_s=60))

    def mounts(self, timeout_ms: int = 1000, user: str = "alice", job: int = JOB) -> MountsReport:
        request = self.request(ProbeMounts(timeout_ms), user, job)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.mounts(request))

    def tasks(self, user: str = "alice", job: int = JOB) -> tuple[TaskReport, ...]:
        request = self.request(ReadTasks(), user, job)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.tasks(request))

    def stacks(
        self, timeout_ms: int = 10_000, user: str = "alice", job: int = JOB
    ) -> tuple[StackReport, ...]:
        request = self.request(DumpStacks(timeout_ms), user, job)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.stacks(request))

    def request(
        self, question: Question, user: str = "alice", job: int = JOB, started: int = 0
    ) -> bytes:
        grant = self._signer.issue(
            verb_of(question).act, self.node, subject="s", user=user, job_id=job,
            started=started, digest=digest_of(question),
        )  # fmt: skip
        return write_request(grant, question)

    def start(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        owner: str = "alice",
        job: int = JOB,
        step: str = "0",
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        stdout: int = subprocess.DEVNULL,
    ) -> int:
        """A process of the user's in a step of the owner's job; `before` runs as root."""
        uid = pwd.getpwnam(owner).pw_uid
        group = self._base / f"uid_{uid}" / f"job_{job}" / f"step_{step}"
        group.mkdir(parents=True, exist_ok=True)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        process = subprocess.Popen(
            [
                *("/bin/sh", "-c", _JOIN, "join", str(group / "cgroup.procs")),
                *before,
                *(become if user != "root" else ()),
                *argv,
            ],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", **(environment or {})},
        )
        self._started.append(process)
        name = Path(argv[0]).name[:15]
        eventually(Path(f"/proc/{process.pid}/comm").read_text, lambda said: said == f"{name}\n")
        return process.pid

    def runs(self, pid: int) -> bool:
        (process,) = (each for each in self._started if each.pid == pid)
        return process.poll() is None

    def end_all(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._started.clear()
        for folder, _, _ in os.walk(self._base, topdown=False):
            with suppress(OSError):
                eventually((Path(folder) / "cgroup.procs").read_text, lambda left: not left)
                Path(folder).rmdir()

    def close(self) -> None:
        self.end_all()
        self.helper.terminate()
        self.helper.wait()
