"""A pinned process: never another one that got the same pid later.

Once a process is gone, a descriptor of its `/proc/PID` always gives "no such process". So
everything is read through such a descriptor. The control group shows the job, and is read before
and after. The first `job_N` of its path counts, because users may create folders below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LARGEST_FILE = 16 * 1024
_LARGEST_ENVIRONMENT = 256 * 1024
_RANK = "SLURM_PROCID="
_LONGEST_RANK = 9
_JOB = re.compile(r"job_([0-9]{1,10})", re.ASCII)
_STEP = re.compile(r"step_(batch|extern|interactive|[0-9]{1,10}(?:\+[0-9]{1,6})?)", re.ASCII)
_START_AFTER_COMM = 19
_LONGEST_NUMBER = 20


@dataclass(frozen=True, slots=True)
class Pinned:
    """One process of a job. `folder` is an open descriptor of its folder in `/proc`."""

    pid: int
    folder: int
    job_id: int
    started: int
    comm: str

    def rank(self) -> int | None:
        """Its task's number in the step, from its environment; the user can set any value."""
        for each in text_of(self.folder, "environ", _LARGEST_ENVIRONMENT).split("\0"):
            if each.startswith(_RANK):
                return _number(each.removeprefix(_RANK)[:_LONGEST_RANK])
        return None

    def step(self) -> str:
        """Its step, from its control group; empty if that has none."""
        return step_of(text_of(self.folder, "cgroup"), self.job_id)

    def unchanged(self) -> bool:
        """Whether it still runs in the same job; it may have executed another program."""
        now = identity_of(self.folder, self.job_id)
        return now is not None and now[0] == self.started


@contextmanager
def pinned(proc: Path, pid: int, job_id: int) -> Iterator[Pinned | None]:
    """The process, if it belongs to the job."""
    try:
        folder = os.open(proc / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        identity = identity_of(folder, job_id)
        yield None if identity is None else Pinned(pid, folder, job_id, *identity)
    finally:
        os.close(folder)


def identity_of(folder: int, job_id: int) -> tuple[int, str] | None:
    """Its start and its name, while it is a process of the job."""
    if not is_of_job(text_of(folder, "cgroup"), job_id):
        return None
    return read_stat(text_of(folder, "stat"))


def is_of_job(cgroups: str, job_id: int) -> bool:
    """Whether `/proc/PID/cgroup` names this job.

    `12:freezer:/slurm_n1/uid_3001/job_42/step_0` or `0::/system.slice/…/job_42/step_0/user`
    """
    for line in cgroups.splitlines():
        named = (_JOB.fullmatch(part) for part in line.split("/")[1:])
        first = next((found[1] for found in named if found), "")
        if first == str(job_id):
            return True
    return False


def step_of(cgroups: str, job_id: int) -> str:
    """The step directly below the job's group, from the first line that has one."""
    for line in cgroups.splitlines():
        parts = line.split("/")[1:]
        place = next((at for at, part in enumerate(parts) if _JOB.fullmatch(part)), len(parts))
        if place + 1 < len(parts) and parts[place] == f"job_{job_id}":
            found = _STEP.fullmatch(parts[place + 1])
            if found:
                return found[1]
    return ""


def read_stat(text: str) -> tuple[int, str] | None:
    """The start in clock ticks since the boot, and the name, which may contain any character."""
    head, closing, rest = text.rpartition(")")
    _, opening, comm = head.partition("(")
    words = rest.split()
    if not (opening and closing) or len(words) <= _START_AFTER_COMM:
        return None
    started = _number(words[_START_AFTER_COMM])
    return None if started is None else (started, comm)


@dataclass(frozen=True, slots=True)
class DescriptorFacts:
    """The fields of `/proc/PID/fdinfo/N`."""

    position: int
    flags: int
    mount_id: int
    inode: int | None
    """None with kernels before 5.14."""

    @property
    def writes(self) -> bool:
        # A descriptor opened with O_PATH has the mode of a reader.
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    def same_file(self, other: DescriptorFacts) -> bool:
        """Whether only the position differs."""
        return (self.flags, self.mount_id, self.inode) == (
            other.flags,
            other.mount_id,
            other.inode,
        )


def read_descriptor_facts(text: str) -> DescriptorFacts | None:
    """Parse the text; None if it is malformed."""
    told: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name, value.strip())
    flags = told.get("flags", "")
    position, mount_id = _number(told.get("pos", "")), _number(told.get("mnt_id", ""))
    if not re.fullmatch(r"[0-7]{1,12}", flags) or position is None or mount_id is None:
        return None
    return DescriptorFacts(position, int(flags, 8), mount_id, _number(told.get("ino", "")))


def text_of(folder: int, name: str, most_bytes: int = _LARGEST_FILE) -> str:
    """The text of a small file below a folder; empty if it can't be read."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    parts, left = [], most_bytes
    try:
        while left > 0 and (part := os.read(file, left)):
            parts.append(part)
            left -= len(part)
    except OSError:  # the process ended meanwhile
        return ""
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")


def _number(text: str) -> int | None:
    fits = text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
    return int(text) if fits else None
