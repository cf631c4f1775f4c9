"""The control groups of one job on this node: where its processes are, and which a guest joins.

    freezer/slurm_n1/uid_3001/job_12/step_0                  v1, a tree for each controller
    system.slice/n1_slurmstepd.scope/job_12/step_0/user/task_1           v2, one tree
    system.slice/n1_slurmstepd.scope/sDFDM7JZPGD600/step_0/user/task_1   v2, from 26.05 on

For a grant, the paths are built from its values; the tree is never searched. Users may create
folders below a step, so their names prove nothing. The group of each process found there is checked
again (`process.pinned`).

For counters, `JobPids` finds a job by its number alone. It caches the path of the job's groups
until they are gone. It reads the tree below each time, because steps start and end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lattice.helper.kernel_texts import bytes_of
from lattice.helper.unique_ids import UNIQUE_ID, job_of_unique_id

_V2_MARK = "cgroup.controllers"
_SLICE = "system.slice"
_TRUTH = ("freezer", "", "memory", "cpuacct", "cpu,cpuacct", "cpu", "devices", "cpuset")
"""The hierarchies by preference for locating processes: first the one Slurm tracks them with."""
_STEP = re.compile(r"step_(batch|interactive|[0-9]{1,10}(?:\+[0-9]{1,6})?)", re.ASCII)
_TASK = re.compile(r"task_([0-9]{1,10})", re.ASCII)
EXTERN = "extern"
_EXTERN = f"step_{EXTERN}"
_SPECIAL = "task_special"
"""Slurm's folder on v2 for processes that belong to no task. It creates it when it needs it."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}", re.ASCII)
_MOST_FOLDERS = 1024
_LARGEST_LIST = 1024 * 1024
_LONGEST_PID = 7
_USER = re.compile(r"uid_([0-9]{1,10})", re.ASCII)
_DAEMONS = "slurm"
_DEEPEST = 8
_MOST_PROCESSES = 32_768


@dataclass(frozen=True, slots=True)
class HelperJobFolder:
    """The job in one hierarchy; the hierarchy of v2 has an empty name."""

    hierarchy: str
    path: str

    @property
    def guests(self) -> str:
        """The folder for a process that counts as the job's but is no task; empty: none.

        Slurm counts processes in the task's own folder. Its number is the node's index in the job.
        Newer releases start no task in the extern step. Then on v2 the folder may not exist yet,
        and no other one there can take processes.
        """
        extern = f"{self.path}/{_EXTERN}"
        inner = extern if self.hierarchy else f"{extern}/user"
        found = (_TASK.fullmatch(name) for name in _folders(inner, _MOST_FOLDERS))
        tasks = sorted(int(each[1]) for each in found if each)
        if tasks:
            return f"{inner}/task_{tasks[0]}"
        if not self.hierarchy and os.path.isdir(inner):  # noqa: PTH112
            return f"{inner}/{_SPECIAL}"
        return next((each for each in (inner, extern) if os.path.isdir(each)), "")  # noqa: PTH112

    @property
    def extern_daemons(self) -> str:
        """The folder for Slurm's own processes of the extern step, on v2."""
        return "" if self.hierarchy else f"{self.path}/{_EXTERN}/{_DAEMONS}"


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step that runs programs of the user."""

    name: str
    path: str

    def pids(self) -> list[int]:
        """Sorted; includes those of the tasks."""
        found: set[int] = set()
        for folder in _with_tasks(self.path):
            found.update(_pids(folder) or ())
        return sorted(found)


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The job in every hierarchy that has it; the first one decides where its processes are."""

    folders: tuple[HelperJobFolder, ...]

    @property
    def path(self) -> str:
        return self.folders[0].path

    @property
    def guests(self) -> tuple[str, ...]:
        """The folders that a guest joins; empty if the job has no extern step."""
        # A guest joins only if it is killed with the job: then it is counted and limited with it,
        # too.
        if not self.folders[0].guests:
            return ()
        return tuple(folder.guests for folder in self.folders if folder.guests)

    @property
    def born(self) -> float | None:
        """When Slurm created the job's group; None if it is gone.

        The kernel records no creation time. But it records when the owner of a folder changes,
        which Slurm does right after creating it. Nothing changes the access time after that.
        Where Slurm leaves the owner (26.05 on v2), all times are of the first access, and a later
        one changes the access time.
        """
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return None
        return min(found.st_atime, found.st_mtime)

    def anchors(self) -> list[int]:
        """The processes in the guests' folder: Slurm's own, and other guests."""
        return sorted(_pids(self.folders[0].guests) or ()) if self.folders[0].guests else []

    def extern_daemons(self) -> list[int]:
        """Slurm's processes that last as long as the extern step, where they have a folder."""
        folder = self.folders[0].extern_daemons
        return sorted(_pids(folder) or ()) if folder else []

    def steps(self) -> list[JobStep]:
        """Numbered steps first, in order; then the batch script."""
        named = [(_STEP.fullmatch(name), name) for name in _folders(self.path, _MOST_FOLDERS)]
        steps = [JobStep(found[1], f"{self.path}/{name}") for found, name in named if found]
        return sorted(steps, key=lambda step: (not step.name[0].isdigit(), _order(step.name)))


def is_of_guests(folder: str) -> bool:
    """True for a folder that guests make for themselves."""
    return os.path.basename(folder) == _SPECIAL  # noqa: PTH119


def leave_guests(folder: str) -> bool:
    """Remove a folder that was made for guests; False while a process is in it.

    Slurm does not know it and would leave it, and the folders around it, when the job ends. If
    that has happened, they are removed, too.
    """
    if not is_of_guests(folder):
        return True
    try:
        os.rmdir(folder)  # noqa: PTH106
    except FileNotFoundError:
        return True
    except OSError:
        return False
    step = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120
    if _pids(f"{step}/{_DAEMONS}"):
        return True
    with suppress(OSError):
        for each in (f"{step}/user", f"{step}/{_DAEMONS}", step, os.path.dirname(step)):  # noqa: PTH120
            with suppress(FileNotFoundError):
                os.rmdir(each)  # noqa: PTH106
    return True


def pids_of(folder: str) -> list[int]:
    """The processes in this control group alone; empty if it is gone."""
    return _pids(folder) or []


def has_steps(folder: int) -> bool:
    """Whether the job behind this descriptor still has a step other than the extern step."""
    return any(_STEP.fullmatch(name) for name in _names(folder))


def has_extern_step(folder: int) -> bool:
    """Whether it still has the extern step, with which Slurm holds the job's place on the node."""
    return _EXTERN in _names(folder)


def _names(folder: int) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the job is gone
        return []


def find_job(root: Path, node: str, uid: int, job_id: int) -> JobGroups | None:
    """The job's groups below the mount point of control groups; None if it has none here."""
    if not _NODE.fullmatch(node):
        return None
    found = [
        HelperJobFolder(hierarchy, path)
        for hierarchy, path in _places(str(root), node, uid, job_id)
        if os.path.isdir(path)  # noqa: PTH112  paths are text here, for speed
    ]
    ranks = {name: rank for rank, name in enumerate(_TRUTH)}
    found.sort(key=lambda folder: ranks.get(folder.hierarchy, len(ranks)))
    return JobGroups(tuple(found)) if found else None


def _places(root: str, node: str, uid: int, job_id: int) -> Iterator[tuple[str, str]]:
    """At most one for each hierarchy. If two slurmds share a host, the one of this node."""
    if _is_v2(root):
        yield from _v2_places(root, node, job_id)
        return
    for hierarchy in sorted(_folders(root, _MOST_FOLDERS)):
        folder = f"{root}/{hierarchy}"
        if _is_v2(folder):
            yield from _v2_places(folder, node, job_id)
            continue
        for base in (f"slurm_{node}", "slurm"):
            path = f"{folder}/{base}/uid_{uid}/job_{job_id}"
            if os.path.isdir(path):  # noqa: PTH112
                yield hierarchy, path
                break


def _v2_places(root: str, node: str, job_id: int) -> Iterator[tuple[str, str]]:
    for scope in (f"{node}_slurmstepd.scope", "slurmstepd.scope"):
        for parent in (f"{root}/{_SLICE}", root):
            path = _v2_job(f"{parent}/{scope}", job_id)
            if path:
                yield "", path
                return


def _v2_job(scope: str, job_id: int) -> str:
    """Its folder, by its number or by its unique id; empty if it has none."""
    path = f"{scope}/job_{job_id}"
    if os.path.isdir(path):  # noqa: PTH112
        return path
    named = (f"{scope}/{name}" for name in _folders(scope) if UNIQUE_ID.fullmatch(name))
    return next((each for each in named if job_of_unique_id(each) == job_id), "")


def _is_v2(folder: str) -> bool:
    return os.path.exists(f"{folder}/{_V2_MARK}")  # noqa: PTH110


def _with_tasks(step: str) -> Sequence[str]:
    """v1 has processes in the step or in its tasks, v2 in tasks below `user`."""
    inner = f"{step}/user"
    folder = inner if os.path.isdir(inner) else step  # noqa: PTH112
    tasks = [name for name in _folders(folder, _MOST_FOLDERS) if _TASK.fullmatch(name)]
    return [folder, *(f"{folder}/{name}" for name in sorted(tasks, key=_order))]


def _order(name: str) -> tuple[int, str]:
    digits = re.sub(r"[^0-9].*", "", name.removeprefix("task_"))
    return (int(digits) if digits else 0, name)


class JobPids:
    """The current processes of the jobs of one node."""

    def __init__(self, node: str, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._node = node
        self._root = root
        self._paths: dict[int, str] = {}

    def of(self, job_id: int) -> dict[int, bool]:
        """Its pids, and for each whether it belongs to a step that runs the owner's programs."""
        path = self._paths.get(job_id) or self._find(job_id)
        if not path:
            return {}
        found: dict[int, bool] = {}
        if not _gather(path, found, 0, own=False):
            self._paths.pop(job_id, None)
        return found

    def forget(self, job_id: int) -> None:
        self._paths.pop(job_id, None)

    def _find(self, job_id: int) -> str:
        for uid in self._users() or {0}:
            groups = find_job(self._root, self._node, uid, job_id)
            if groups is not None:
                self._paths[job_id] = groups.path
                return groups.path
        return ""

    def _users(self) -> set[int]:
        """Users with a Slurm folder in any v1 hierarchy; v2 has no folders for users."""
        users: set[int] = set()
        for hierarchy in _folders(str(self._root)):
            for base in (f"slurm_{self._node}", "slurm"):
                names = _folders(f"{self._root}/{hierarchy}/{base}")
                users.update(int(each[1]) for name in names if (each := _USER.fullmatch(name)))
        return users


def _gather(folder: str, found: dict[int, bool], depth: int, *, own: bool) -> bool:
    """Add the processes of this folder and below; False if it is gone."""
    listed = _pids(folder)
    if listed is None:
        return False
    for pid in listed:
        if len(found) < _MOST_PROCESSES:
            found[pid] = own
    if depth < _DEEPEST and _has_folders(folder):
        for name in _folders(folder):
            # Slurm's own: its daemons, and the extern step.
            slurms = name == _EXTERN if depth == 0 else depth == 1 and name == _DAEMONS
            below = not slurms and (own or depth == 0)
            _gather(f"{folder}/{name}", found, depth + 1, own=below)
    return True


def _has_folders(folder: str) -> bool:
    # A control group counts its folders as links; listing one takes ten times as long.
    try:
        return os.stat(folder).st_nlink != 2  # noqa: PTH116
    except OSError:
        return False


def _pids(folder: str) -> list[int] | None:
    """Its own processes; None if the group is gone."""
    raw = bytes_of(f"{folder}/cgroup.procs", _LARGEST_LIST)
    if raw is None:
        return None
    # 0 is a process without a pid in this namespace.
    numbers = (int(each) for each in raw.split() if each.isdigit() and len(each) <= _LONGEST_PID)
    return [each for each in numbers if each]


def _folders(folder: str, most: int | None = None) -> list[str]:
    """Skips symbolic links: cpu and cpuacct are often two names of one folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return list(islice(names, most))
    return []
