"""Which processes of a job hold the files that Slurm writes for it, and whose output they are.

Slurm's own are the first processes of a step (children of slurmstepd), `srun`, and slurmstepd
itself where it labels lines. What a script redirects for its own children is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lattice.domain.logs import LogKind, LogSource
from lattice.domain.nodejobs import NodeJob
from lattice.domain.outputs import OutputFile

_TITLE = re.compile(r"slurmstepd: \[\d+\.(batch|extern|interactive|\d+(?:\+\d+)?)\]")


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """What everyone may see of a process."""

    parent: int
    name: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Writer:
    """A process to ask about: its step, and its task where it is one."""

    pid: int
    step: str
    task: int | None = None


Look = Callable[[int], ProcessLook | None]


def writers_of(job: NodeJob, look: Look, *, patient: bool = True) -> tuple[Writer, ...]:
    """Each process at most once; those that are gone meanwhile are left out.

    A task begins as a copy of slurmstepd, which puts its files in place before it becomes the
    program: it is left for a later look, and so is one whose number is not known yet while
    whoever asks is `patient`.
    """
    daemons = {each.pid for each in job.daemons}
    found: dict[int, Writer] = {}
    for step in job.steps:
        tasks = {process.pid: task.id for task in step.tasks for process in task.processes}
        inside = {process.pid for process in step.processes}
        for pid in sorted(inside):
            seen = look(pid)
            if seen is None:
                continue
            first = seen.parent in daemons or seen.parent not in inside
            unready = seen.name == "slurmstepd" or (
                patient and step.id.number is not None and pid not in tasks
            )
            if (first and not unready) or seen.name == "srun":
                found.setdefault(pid, Writer(pid, str(step.id), tasks.get(pid)))
    for pid in sorted(daemons):
        seen = look(pid)
        title = _TITLE.match(seen.title) if seen else None
        if title is not None and title[1] not in {"extern", "batch"}:
            found.setdefault(pid, Writer(pid, title[1]))
    return tuple(found.values())


def stream_of(
    file: OutputFile, writers: Iterable[Writer], taken: Iterable[tuple[LogKind, LogSource]]
) -> tuple[LogKind, LogSource]:
    """What a file is called: by its holders, and not as another one is called already."""
    by_pid = {each.pid: each for each in writers}
    descriptors = {each.descriptor for each in file.holders}
    kind = LogKind.STDERR if 2 in descriptors and 1 not in descriptors else LogKind.STDOUT
    holders = [by_pid[each.pid] for each in file.holders if each.pid in by_pid]
    steps = sorted({each.step for each in holders}) or ["batch"]
    tasks = {each.task for each in holders}
    step = "batch" if "batch" in steps else steps[0]
    task = tasks.pop() if len(tasks) == 1 and step not in {"batch", "extern"} else None
    source = LogSource(step, task)
    known = set(taken)
    while (kind, source) in known:
        source = LogSource(step, task, source.copy + 1)
    return kind, source
