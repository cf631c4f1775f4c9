"""Reads one job's control group into a `NodeJob`: its steps, tasks and processes.

The tree changes while it is read. Folders and processes that vanish meanwhile are skipped, and the
next reading corrects that. It never raises for anything that a job or Slurm does.

Control groups always answer; a process may not. Each pid is noted before it is read. Processes that
block a reader are taken from the previous reading.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from lattice.adapters.linux.groups import V2, Base, JobGroup, Watch, folders_in
from lattice.adapters.linux.proc import Proc, parse_pids, read_text
from lattice.adapters.linux.slurm_names import job_of_title, step_of, task_of
from lattice.base.impatience_threads import ThreadProgress
from lattice.domain.nodejobs import (
    JobFolder,
    JobIdentity,
    NodeJob,
    NodeStep,
    NodeTask,
    ProcessId,
    StartSign,
    StepId,
)

_DEEPEST = 6
"""Folders below a step: user, task, and a few that a container runtime may add."""
_MOST_PROCESSES = 32_768
"""Of one job; the kernel's usual limit for all of them together."""
_BIRTH_DOUBT_S = 30.0
"""If a folder is this much younger than a process in it, its time is wrong: see `_started`."""
_TASKS_ASKED = 8
_STEPD_FOLDER = "slurm"


@dataclass(slots=True)
class _Pids:
    """The pids below one step."""

    daemons: set[int] = field(default_factory=set)
    all: set[int] = field(default_factory=set)
    tasks: dict[int, set[int]] = field(default_factory=dict)


class JobReader:
    """Reads jobs of one node, each repeatedly."""

    def __init__(self, proc: Proc, boot_id: str) -> None:
        self._proc = proc
        self._boot_id = boot_id

    def read(
        self,
        group: JobGroup,
        bases: Sequence[Base],
        watch: Watch,
        before: NodeJob | None,
        progress: ThreadProgress | None,
        unread: Collection[int] = (),
    ) -> NodeJob:
        """The job as it is now. `before` is the last reading of the same attempt, if any.

        Without `progress` no process is read. `unread` are processes that block a reader.
        """
        watch(group.path)
        processes = _Processes(self._proc, before, progress)
        daemons = processes.known(_procs(group.path))
        folders = _folders(group, bases)
        steps = []
        for name in folders_in(group.path):
            step_id = step_of(name)
            if step_id is None:
                continue
            found = _below(f"{group.path}/{name}")
            if not found.tasks:
                found.tasks = _tasks_elsewhere(folders, name)
            daemons += processes.known(found.daemons)
            steps.append(_step(step_id, found, processes))
        steps.sort(key=lambda step: step.id.order)
        job = NodeJob(
            identity=JobIdentity(self._boot_id, group.name.job_id or 0, group.inode, group.born),
            started_by=StartSign.FOLDER,
            uid=group.uid,
            sluid=group.name.sluid,
            steps=tuple(steps),
            daemons=tuple(sorted(daemons)),
            folders=folders,
            unread=tuple(sorted(processes.listed(unread))) if unread else (),
        )
        return self._complete(job, before, progress)

    def _complete(
        self, job: NodeJob, before: NodeJob | None, progress: ThreadProgress | None
    ) -> NodeJob:
        """Add data that only processes have, once: it must not change as processes end."""
        if before is not None and before.identity.job_id:
            identity, sign = before.identity, before.started_by
        else:
            job_id = job.id or self._number(job.daemons, progress)
            started, sign = self._started(job)
            identity = JobIdentity(self._boot_id, job_id, job.identity.inode, started)
        uid = job.uid
        if uid is None:
            known = before is not None and before.uid is not None
            uid = before.uid if before and known else self._owner(job.steps, progress)
        return replace(job, identity=identity, started_by=sign, uid=uid)

    def _started(self, job: NodeJob) -> tuple[float, StartSign]:
        """The folder's time, unless a process proves that it is much too late.

        The kernel forgets the time of a folder if its owner was never set. It then returns the time
        of the first access. That is so for a folder with a unique id: the first daemon counts.
        """
        born = job.identity.started
        oldest = min(
            (*job.processes, *job.daemons), key=lambda each: each.start_ticks, default=None
        )
        if oldest is None:
            return born, StartSign.FOLDER
        if job.sluid is not None:
            began = self._proc.earliest_start(oldest)
            return (born, StartSign.FOLDER) if began is None else (began, StartSign.PROCESS)
        began = self._proc.wall_time(oldest)
        if began is not None and born > began + _BIRTH_DOUBT_S:
            return began, StartSign.PROCESS
        return born, StartSign.FOLDER

    def _number(self, daemons: Iterable[ProcessId], progress: ThreadProgress | None) -> int:
        """The job id if the folder has only a unique id; 0 while no daemon shows it."""
        for daemon in daemons:
            if not _may_read(daemon.pid, progress):
                continue
            title = self._proc.title(daemon.pid)
            job_id = job_of_title(title) if title else None
            if job_id is not None:
                return job_id
        return 0

    def _owner(self, steps: Iterable[NodeStep], progress: ThreadProgress | None) -> int | None:
        """The job's owner, if the first processes of its tasks agree on one that is not root.

        slurmstepd starts each task as root and then becomes the owner; the extern step's only
        process stays root. Later processes can belong to another user: sudo, subordinate ids.
        """
        owners: set[int] = set()
        asked = 0
        for step in steps:
            crews = [task.processes for task in step.tasks] or [step.processes]
            for crew in crews:
                if not crew or step.id.name == "extern" or asked >= _TASKS_ASKED:
                    continue
                asked += 1
                first = min(crew, key=lambda each: each.start_ticks).pid
                owner = self._proc.owner(first) if _may_read(first, progress) else None
                if owner:
                    owners.add(owner)
        return owners.pop() if len(owners) == 1 else None


class _Processes:
    """Converts pids to processes, each read once, up to the limit of one job."""

    def __init__(self, proc: Proc, before: NodeJob | None, progress: ThreadProgress | None) -> None:
        self._proc = proc
        self._before = before
        self._progress = progress
        self._known: dict[int, ProcessId | None] = {}
        self._remembered: dict[int, ProcessId] | None = None

    def listed(self, pids: Iterable[int]) -> list[int]:
        """Those that the job's groups list."""
        return [pid for pid in pids if pid in self._known]

    def known(self, pids: Iterable[int]) -> list[ProcessId]:
        found = []
        progress = self._progress
        for pid in pids:
            if pid not in self._known:
                if len(self._known) >= _MOST_PROCESSES:
                    continue
                # As `_may_read`, without a call for each of thousands.
                if progress is not None and pid not in progress.skip:
                    progress.reads(pid)
                    self._known[pid] = self._proc.process(pid)
                else:
                    self._known[pid] = self._process_before(pid)
            process = self._known[pid]
            if process is not None:
                found.append(process)
        return found

    def _process_before(self, pid: int) -> ProcessId | None:
        if self._remembered is None:
            before = self._before
            known = (*before.processes, *before.daemons) if before is not None else ()
            self._remembered = {each.pid: each for each in known}
        return self._remembered.get(pid)


def _may_read(pid: int, progress: ThreadProgress | None) -> bool:
    """Whether to read it. Notes the pid first: this may be the one that never answers."""
    if progress is None or pid in progress.skip:
        return False
    progress.reads(pid)
    return True


def _step(step_id: StepId, found: _Pids, processes: _Processes) -> NodeStep:
    tasks = [
        NodeTask(number, tuple(sorted(processes.known(pids))))
        for number, pids in sorted(found.tasks.items())
    ]
    every = found.all.union(*found.tasks.values())
    return NodeStep(step_id, tuple(tasks), tuple(sorted(processes.known(every))))


def _folders(group: JobGroup, bases: Sequence[Base]) -> tuple[JobFolder, ...]:
    """The job's groups in every hierarchy, the deciding one first."""
    inside = group.path.removeprefix(group.base.path)
    others = [
        JobFolder(base.hierarchy, base.path + inside)
        for base in bases
        if base != group.base and base.hierarchy != V2 and base.name == group.base.name
    ]
    there = [each for each in others if os.path.isdir(each.path)]  # noqa: PTH112
    return (JobFolder(group.base.hierarchy, group.path), *there)


def _tasks_elsewhere(folders: Sequence[JobFolder], step: str) -> dict[int, set[int]]:
    """On v1 the freezer has no task folders; use the first controller that has some."""
    for folder in folders[1:]:
        found = _below(f"{folder.path}/{step}").tasks
        if found:
            return found
    return {}


def _below(folder: str) -> _Pids:
    found = _Pids()
    _gather(folder, found, None, 0)
    return found


def _gather(folder: str, found: _Pids, task: int | None, depth: int) -> None:
    pids = _procs(folder)
    found.all.update(pids)
    if task is not None:
        found.tasks.setdefault(task, set()).update(pids)
    for name in folders_in(folder) if depth < _DEEPEST and _has_folders(folder) else ():
        if depth == 0 and name == _STEPD_FOLDER:
            found.daemons.update(_procs(f"{folder}/{name}"))
        else:
            number = task_of(name) if task is None else task
            _gather(f"{folder}/{name}", found, number, depth + 1)


def _has_folders(folder: str) -> bool:
    # A control group counts its folders as links; listing one takes ten times as long.
    try:
        return os.stat(folder).st_nlink != 2  # noqa: PTH116
    except OSError:
        return False


def _procs(folder: str) -> list[int]:
    text = read_text(f"{folder}/cgroup.procs")
    return parse_pids(text) if text else []
