"""The node's verb `read_tasks`: the processes that do a job's work, and their current state.

They are found in the job's own control group. Each is pinned (`process.pinned`) and belongs to the
job's owner. Files that are closed to others are read with the owner's file rights. CAP_SYS_PTRACE
is needed if a process runs with another group of the owner. The answer has only program and script
of a command line, and only the rank and the buffering of an environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lattice.base.text import inert
from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer
from lattice.domain.probed import MOST_PROCESSES, TaskLook, write_tasks
from lattice.helper.jobgroups import JobStep
from lattice.helper.privilege import Kernel
from lattice.helper.probe_base import JobFinder, NotProbed, ProbedJob, as_files_of, told_in_memory
from lattice.helper.process import Pinned, pinned, text_of
from lattice.helper.process_text import (
    command_of,
    is_piped,
    is_python,
    is_unbuffered,
    read_stat,
    waits_in,
    words_of,
)
from lattice.helper.rank_choice import Candidate, rank_of, workers
from lattice.helper.target import read_environment, status_of

_MOST_LOOKED_AT = 2048
_LARGEST_ENVIRONMENT = 256 * 1024
_LARGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorker:
    """One process that does the work."""

    look: TaskLook
    started: int
    gid: int
    python: bool


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the processes of one job as root with CAP_SYS_PTRACE and its owner's file rights."""

    kernel: Kernel
    proc: Path = field(default=Path("/proc"))

    def workers(self, job: ProbedJob) -> list[TaskWorker]:
        """By rank; at most `MOST_PROCESSES`."""
        with as_files_of(self.kernel, job.uid):
            found = workers(self._candidates(job))[:MOST_PROCESSES]
            return [worker for each in found if (worker := self._worker(job, each))]

    def _candidates(self, job: ProbedJob) -> list[Candidate]:
        found: list[Candidate] = []
        for step in job.groups.steps():
            found += self._of_step(job, step, _MOST_LOOKED_AT - len(found))
        return found

    def _of_step(self, job: ProbedJob, step: JobStep, most: int) -> Iterator[Candidate]:
        for pid in step.pids()[: max(0, most)]:
            with self._own(job, pid) as process:
                stat = read_stat(text_of(process.folder, "stat")) if process else None
                if process is None or stat is None or stat.state in "ZXx":
                    continue
                rank, near = rank_of(_environment(process) or {})
                yield Candidate(
                    pid=pid,
                    parent=stat.parent,
                    started=stat.started,
                    name=stat.name,
                    step=step.name,
                    rank=rank,
                    near=near,
                )

    @contextmanager
    def _own(self, job: ProbedJob, pid: int) -> Iterator[Pinned | None]:
        """The process, if it belongs to the job and its owner."""
        with pinned(self.proc, pid, job.id) as process:
            uids = _status(process).get("Uid", "").split() if process else []
            yield process if uids and set(uids) == {str(job.uid)} else None

    def _worker(self, job: ProbedJob, chosen: Candidate) -> TaskWorker | None:
        with self._own(job, chosen.pid) as process:
            if process is None or process.started != chosen.started:
                return None
            stat = read_stat(text_of(process.folder, "stat"))
            if stat is None:
                return None
            python = is_python(_link(process, "exe"), stat.name)
            words = words_of(text_of(process.folder, "cmdline", _LARGEST_LINE))
            ticks = os.sysconf("SC_CLK_TCK")
            look = TaskLook(
                pid=chosen.pid,
                step=chosen.step,
                rank=chosen.rank,
                state=stat.state,
                waits_in=waits_in(text_of(process.folder, "wchan")),
                cpu_seconds=stat.cpu / ticks,
                age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / ticks),
                command=inert(command_of(words, stat.name, python=python)),
                python_unbuffered=(is_unbuffered(words, _environment(process)) if python else None),
                output_piped=is_piped(_link(process, "fd/1")),
            )
            gids = _status(process).get("Gid", "").split()
            gid = int(gids[0]) if len(set(gids)) == 1 else -1
            return TaskWorker(look=look, started=stat.started, gid=gid, python=python)


@dataclass(frozen=True, slots=True)
class JobTasks:
    """Handles the verb."""

    reader: TaskReader
    finder: JobFinder

    def read(self, grant: Grant, descriptors: Sequence[int]) -> tuple[Answer, Sequence[int]]:
        try:
            job = self.finder.find(grant, descriptors)
        except NotProbed as refusal:
            return refusal.answer, ()
        looks = [each.look for each in self.reader.workers(job)]
        return told_in_memory(write_tasks(looks))


def _status(process: Pinned | None) -> dict[str, str]:
    return status_of(text_of(process.folder, "status")) if process is not None else {}


def _environment(process: Pinned) -> dict[bytes, bytes] | None:
    """None if it can't be read."""
    try:
        file = os.open("environ", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process.folder)
    except OSError:
        return None
    parts, left = [], _LARGEST_ENVIRONMENT
    try:
        while left > 0 and (part := os.read(file, left)):
            parts.append(part)
            left -= len(part)
    except OSError:
        return None
    finally:
        os.close(file)
    return read_environment(b"".join(parts))


def _link(process: Pinned, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=process.folder)
    except OSError:
        return ""
