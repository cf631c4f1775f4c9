"""Control groups of `bench.agent`: those that count, and those of jobs, named as Slurm does."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from lab.room import become

NODE = f"bench{os.getpid()}"
OWNER = "alice"
JOIN = 'for each in $1; do echo $$ >"$each" || exit 125; done; shift; exec "$@"'
"""Enters control groups, then becomes what is to run in them."""
_CGROUP = Path("/sys/fs/cgroup")
_V2 = (_CGROUP / "cgroup.controllers").exists()
_TREES = ("freezer", "cpuacct", "memory", "cpuset")
"""Of v1: those that Slurm makes with the usual settings."""


class Account:
    """A control group that counts what is used in it."""

    def __init__(self, name: str) -> None:
        base = _CGROUP if _V2 else _CGROUP / "cpuacct"
        self._folder = base / f"lattice-{NODE}-{name}"
        self._folder.mkdir()

    @property
    def join(self) -> str:
        return str(self._folder / "cgroup.procs")

    @property
    def pids(self) -> list[int]:
        return [int(each) for each in (self._folder / "cgroup.procs").read_text().split()]

    def used_s(self) -> float:
        """Processor time, of those that have ended too."""
        if not _V2:
            return int((self._folder / "cpuacct.usage").read_text()) / 1e9
        told = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(told["usage_usec"]) / 1e6

    def close(self) -> None:
        removed(self._folder)


def removed(folder: Path) -> None:
    """A control group, as soon as it is empty."""
    deadline = time.monotonic() + 5
    while folder.is_dir() and time.monotonic() < deadline:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)


class SlurmJobs:
    """Jobs without Slurm: control groups with its names, and somebody's processes in them."""

    def __init__(self) -> None:
        self._made: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def groups(self, job: int) -> str:
        """The groups of a job, made if they are not there, for `JOIN`."""
        uid = pwd.getpwnam(OWNER).pw_uid
        if _V2:
            top = _CGROUP / "system.slice" / f"{NODE}_slurmstepd.scope"
            leaves = [self._group(top, f"job_{job}", "step_0", "user", "task_0")]
        else:
            leaves = []
            for tree in _TREES:
                top = _CGROUP / tree / f"slurm_{NODE}"
                task = ("task_0",) if tree != "freezer" else ()
                leaves.append(self._group(top, f"uid_{uid}", f"job_{job}", "step_0", *task))
        return " ".join(str(each / "cgroup.procs") for each in leaves)

    def start(self, job: int, processes: int) -> None:
        joined = self.groups(job)
        sleep = [*become(OWNER), "sleep", "infinity"]
        for _ in range(processes):
            words = ["/bin/sh", "-c", JOIN, "join", joined, *sleep]
            quiet = subprocess.DEVNULL
            self._processes.append(
                subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/")
            )

    def _group(self, top: Path, *below: str) -> Path:
        folder = top
        for name in ("", *below):
            folder = folder / name
            if not folder.exists():
                folder.mkdir(parents=True)
                self._made.append(folder)
                _open_up(folder)
                # As Slurm does, at which the kernel writes down when the group was made.
                os.chown(folder, 0, 0)
        return folder

    def close(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()
        for folder in reversed(self._made):
            removed(folder)


def _open_up(folder: Path) -> None:
    if _V2:
        with suppress(OSError):
            (folder.parent / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
    elif folder.is_relative_to(_CGROUP / "cpuset"):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text((folder.parent / name).read_text())
