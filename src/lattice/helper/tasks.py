"""The node's verb `read_tasks`: the processes that do a job's work, and their current state.

They are found in the job's own control group. Each is pinned (`process.pinned`) and belongs to the
job's owner. Files that are closed to others are read with the owner's file rights. CAP_SYS_PTRACE
is needed if a process runs with another group of the owner. The answer has only program and script
of a command line, and only the rank and the buffering of an environment.

A rank is often a tree: a shell that runs a launcher that runs the program that starts workers. The
program of each tree is chosen. Launchers and shells are skipped if a process of the same rank runs
below them. Processes that a program started are ignored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lattice.base.text import inert
from lattice.domain.grant import Grant
from lattice.domain.privileged import Answer
from lattice.domain.probed import MOST_PROCESSES, TaskReport, write_reports
from lattice.helper.command_lines import (
    arguments_of,
    command_of,
    is_piped,
    is_python,
    is_unbuffered,
)
from lattice.helper.jobgroups import JobStep
from lattice.helper.kernel_texts import environment_of, read_stat, status_of, text_of, waits_in
from lattice.helper.privilege import Kernel, as_files_of
from lattice.helper.probe_base import JobFinder, ProbedJob, answer_in_memory
from lattice.helper.process import Pinned, pinned

_RANKS: Sequence[tuple[bytes, bytes]] = (
    (b"RANK", b"LOCAL_RANK"),
    (b"OMPI_COMM_WORLD_RANK", b""),
    (b"PMIX_RANK", b""),
    (b"SLURM_PROCID", b""),
)
"""A variable, and another that must be set with it; the closest to the work comes first.

`torchrun` starts several ranks below one Slurm task, each with its own `RANK`.
"""
_LONGEST_RANK = 9
_DEEPEST = 64
_SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "slurm_script", "busybox"),
        *("env", "time", "timeout", "numactl", "taskset", "nice", "nohup", "stdbuf", "tee"),
        *("apptainer", "singularity", "starter", "starter-suid", "appinit", "sinit", "enroot"),
        *("tini", "dumb-init", "conda", "uv", "poetry", "torchrun", "accelerate", "deepspeed"),
    }
)
_LAUNCHERS = frozenset(
    {
        *("srun", "mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_pr", "slurmstepd", "sattach"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One process, with the fields that the choice needs."""

    pid: int
    parent: int
    started: int
    name: str
    step: str
    rank: int | None = None
    near: int = len(_RANKS)
    """The index in `_RANKS` of the variable that gave the rank; the least is the closest to the
    work.
    """


def rank_of(environment: Mapping[bytes, bytes]) -> tuple[int | None, int]:
    """The rank from an environment, and the index of its variable in `_RANKS`."""
    for near, (name, beside) in enumerate(_RANKS):
        value = environment.get(name, b"")
        if (
            value.isdigit()
            and len(value) <= _LONGEST_RANK
            and (not beside or beside in environment)
        ):
            return int(value), near
    return None, len(_RANKS)


def workers(processes: Iterable[Candidate]) -> list[Candidate]:
    """The processes that do the work, by rank."""
    every = {each.pid: each for each in processes}
    launching = _launching(every)
    children: dict[tuple[int, int | None, int], list[Candidate]] = {}
    tops: list[Candidate] = []
    for each in every.values():
        if each.pid in launching:
            continue
        parent = every.get(each.parent)
        if parent is not None and _kin(parent) == _kin(each) and parent.pid not in launching:
            children.setdefault((parent.pid, each.rank, each.near), []).append(each)
        else:
            tops.append(each)
    found: list[Candidate] = []
    seen: set[int] = set()
    while tops:
        each = tops.pop()
        if each.pid in seen:
            continue
        seen.add(each.pid)
        below = children.get((each.pid, each.rank, each.near), [])
        if below and each.name in _SHELLS | _LAUNCHERS:
            tops += below
        elif each.name not in _LAUNCHERS:
            found.append(each)
    if any(each.step.isdigit() for each in found):
        # The batch script only waits for them.
        found = [each for each in found if each.step.isdigit() or each.name not in _SHELLS]
    return sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.pid))


def _kin(process: Candidate) -> tuple[str, int | None, int]:
    return process.step, process.rank, process.near


def _launching(every: Mapping[int, Candidate]) -> set[int]:
    """The pids of processes that have a descendant with a rank closer to the work."""
    nearest: dict[int, int] = {}
    for each in every.values():
        above, steps = every.get(each.parent), 0
        while above is not None and steps < _DEEPEST:
            nearest[above.pid] = min(nearest.get(above.pid, each.near), each.near)
            above, steps = every.get(above.parent), steps + 1
    return {pid for pid, near in nearest.items() if near < every[pid].near}


_MOST_LOOKED_AT = 2048
_LARGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorker:
    """One process that does the work."""

    report: TaskReport
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
                rank, near = rank_of(environment_of(process.folder) or {})
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
            arguments = arguments_of(text_of(process.folder, "cmdline", _LARGEST_LINE))
            ticks = os.sysconf("SC_CLK_TCK")
            report = TaskReport(
                pid=chosen.pid,
                step=chosen.step,
                rank=chosen.rank,
                state=stat.state,
                waits_in=waits_in(text_of(process.folder, "wchan")),
                cpu_seconds=stat.cpu / ticks,
                age_s=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / ticks),
                command=inert(command_of(arguments, stat.name, python=python)),
                python_unbuffered=(
                    is_unbuffered(arguments, environment_of(process.folder)) if python else None
                ),
                output_piped=is_piped(_link(process, "fd/1")),
            )
            gids = _status(process).get("Gid", "").split()
            gid = int(gids[0]) if len(set(gids)) == 1 else -1
            return TaskWorker(report=report, started=stat.started, gid=gid, python=python)


@dataclass(frozen=True, slots=True)
class JobTasks:
    reader: TaskReader
    finder: JobFinder

    def read(self, grant: Grant, descriptors: Sequence[int]) -> tuple[Answer, Sequence[int]]:
        job = self.finder.find(grant, descriptors)
        reports = [each.report for each in self.reader.workers(job)]
        return answer_in_memory(write_reports(reports))


def _status(process: Pinned | None) -> dict[str, str]:
    return status_of(text_of(process.folder, "status")) if process is not None else {}


def _link(process: Pinned, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=process.folder)
    except OSError:
        return ""
