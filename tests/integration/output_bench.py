"""A real root helper on this machine, and processes in control groups that are named as a job's.

No Slurm: what the kernel does with descriptors, rights and namespaces is the same without it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab import users
from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import HelperOutputs
from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.domain.outputs import OpenedOutputs, OutputFile
from lattice.domain.privileged import (
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Question,
    digest_of,
    verb_of,
)
from tests.contract.identities import being
from tests.eventually import eventually

JOB = 424_200_000 + os.getpid() % 100_000
"""Its own in each process of tests: pids come round, and one may be of another's bench."""
_JOIN = 'for each in $1; do echo $$ >"$each" || exit 125; done; shift; exec "$@"'


class Bench:
    """The helper, the key it believes, and what was started beside it."""

    def __init__(self, folder: Path) -> None:
        users.ensure_accounts()
        self.folder = folder
        folder.chmod(0o755)
        self._started: list[subprocess.Popen[bytes]] = []
        self._groups: list[Path] = []
        freezer = Path("/sys/fs/cgroup/freezer")
        self._root = freezer if freezer.is_dir() else Path("/sys/fs/cgroup")
        key = SigningKey.generate()
        self._signer = GrantSigner(key, SystemClock())
        keys = folder / "keys"
        keys.write_text(base64.b64encode(key.public).decode())
        self.socket = folder / "socket"
        self.port = HelperOutputs(HelperChannel(self.socket, timeout_s=60))
        self.log = folder / "helper.log"
        with self.log.open("wb") as log:
            self.helper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-m", "lattice.helper", "--role", "node"),
                    *("--place", "n1", "--socket", str(self.socket)),
                    *("--allow-user", users.AGENT_USER, "--grant-keys", str(keys)),
                ],
                stderr=log,
            )
        eventually(self.socket.exists, bool)
        time.sleep(1.1)  # grants of the second in which it started are not believed

    def open(self, *pids: int, user: str = "alice", job: int = JOB) -> OpenedOutputs:
        grant = self.grant_for_pids(pids, job, user)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.open_output(grant, pids))

    def open_file(self, path: str | Path, *, user: str = "alice", job: int = JOB) -> OpenedOutputs:
        grant = self.grant_for_path(str(path), job, user)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.open_output_file(grant, str(path)))

    def note(self, *pids: int, job: int = JOB) -> int:
        with being(users.AGENT_USER):
            return asyncio.run(self.port.note_output(job, pids))

    def open_noted(
        self, *, user: str = "alice", job: int = JOB, since_ms: int = 0, until_ms: int = 0,
        skip: int = 0,
    ) -> OpenedOutputs:  # fmt: skip
        grant = self.grant_for_noted(job, user, since_ms, until_ms, skip)
        with being(users.AGENT_USER):
            return asyncio.run(self.port.open_noted(grant, since_ms, until_ms, skip))

    def grant_for_noted(
        self, job: int = JOB, user: str = "alice", since_ms: int = 0, until_ms: int = 0,
        skip: int = 0,
    ) -> str:  # fmt: skip
        return self._grant(OpenNoted(since_ms, until_ms, skip), user, job)

    def grant_for_pids(self, pids: Sequence[int], job: int = JOB, user: str = "alice") -> str:
        return self._grant(OpenOutput(tuple(pids)), user, job)

    def grant_for_path(self, path: str, job: int = JOB, user: str = "alice") -> str:
        return self._grant(OpenOutputFile(path), user, job)

    def _grant(self, question: Question, user: str, job: int) -> str:
        return self._signer.issue(
            verb_of(question).act, "n1", subject="s", user=user, job_id=job,
            digest=digest_of(question),
        )  # fmt: skip

    def start(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        job: int | None = JOB,
        stdout: Path | int | None = subprocess.DEVNULL,
        becomes: str = "",
    ) -> int:
        """A process of the user's in a job, or in none; answers once it is that program."""
        group = self._group(job)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        opened = stdout.open("ab") if isinstance(stdout, Path) else None
        process = subprocess.Popen(
            ["/bin/sh", "-c", _JOIN, "join", group, *(become if user != "root" else ()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=opened or stdout,  # type: ignore[arg-type]
            stderr=subprocess.DEVNULL,
        )
        if opened is not None:
            opened.close()
        self._started.append(process)
        name = becomes or Path(argv[0]).name
        eventually(Path(f"/proc/{process.pid}/comm").read_text, lambda said: said == f"{name}\n")
        return process.pid

    def _group(self, job: int | None) -> str:
        if job is None:
            return ""
        group = self._root / f"lattice-test-{os.getpid()}" / f"job_{job}"
        group.mkdir(parents=True, exist_ok=True)
        self._groups = list(dict.fromkeys([*self._groups, group]))
        return str(group / "cgroup.procs")

    def file(self, name: str, *, owner: str = "alice", mode: int = 0o600, text: str = "") -> Path:
        """A file of somebody's, in a folder that everybody may enter."""
        path = self.folder / name
        path.write_text(text or f"secret of {owner}\n")
        path.chmod(mode)
        if owner != "root":
            subprocess.run(["chown", f"{owner}:", str(path)], check=True)
        return path

    def end(self, pid: int) -> None:
        """One process, as its user or Slurm would."""
        (process,) = (each for each in self._started if each.pid == pid)
        self._started.remove(process)
        process.kill()
        process.wait()

    def end_all(self) -> None:
        """Every process that was started, so that none is in the way of the next test."""
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()

    def close(self) -> None:
        self.end_all()
        self.helper.terminate()
        self.helper.wait()
        for group in [*self._groups, *{each.parent for each in self._groups}]:
            with suppress(OSError):
                eventually((group / "cgroup.procs").read_text, lambda left: not left)
                group.rmdir()


def content(file: OutputFile) -> bytes:
    return os.pread(file.fd, 4096, 0)
