"""A pinned process, never another one that got the same pid later.

Once a process is gone, a descriptor of its `/proc/PID` always gives "no such process". So
everything is read through such a descriptor. The control group shows the job, and is read before
and after. The first job in its path counts, because users may create folders below it.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lattice.domain.kerneltext import figure
from lattice.helper.kernel_texts import read_stat, text_of
from lattice.helper.unique_ids import UNIQUE_ID, job_of_unique_id

_LARGEST_ENVIRONMENT = 256 * 1024
_RANK = "SLURM_PROCID="
_LONGEST_RANK = 9
_JOB = re.compile(r"job_([0-9]{1,10})", re.ASCII)
_STEP = re.compile(r"step_(batch|extern|interactive|[0-9]{1,10}(?:\+[0-9]{1,6})?)", re.ASCII)
_CONTROL_GROUPS = "/sys/fs/cgroup"


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
                return figure(each.removeprefix(_RANK)[:_LONGEST_RANK])
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
    stat = read_stat(text_of(folder, "stat"))
    return None if stat is None else (stat.started, stat.name)


def is_of_job(cgroups: str, job_id: int) -> bool:
    """Whether `/proc/PID/cgroup` names this job.

    `12:freezer:/slurm_n1/uid_3001/job_42/step_0` or `0::/system.slice/…/job_42/step_0/user`
    """
    return any(_below_job(line, job_id) is not None for line in cgroups.splitlines())


def step_of(cgroups: str, job_id: int) -> str:
    """The step directly below the job's group, from the first line that has one."""
    for line in cgroups.splitlines():
        below = _below_job(line, job_id)
        if below and (found := _STEP.fullmatch(below[0])):
            return found[1]
    return ""


def _below_job(line: str, job_id: int) -> list[str] | None:
    """The folders below the job's; None if the first job in the path is another."""
    parts = line.split("/")[1:]
    for number, part in enumerate(parts, 1):
        if found := _JOB.fullmatch(part):
            return parts[number:] if found[1] == str(job_id) else None
        if UNIQUE_ID.fullmatch(part) and line.startswith("0::"):
            folder = "/".join((_CONTROL_GROUPS, *parts[:number]))
            return parts[number:] if job_of_unique_id(folder) == job_id else None
    return None


def is_readable(descriptor: int, wait_s: float) -> bool:
    """Whether it has input, or its other end is closed, within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended."""
    return is_readable(pidfd, 0)
