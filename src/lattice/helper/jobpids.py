"""Finds a job's current processes in Slurm's control groups, by the job's number alone.

For use during a conversation: the path of a job's groups is cached until the groups are gone. The
tree below is read each time, because steps start and end.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from lattice.helper.jobgroups import find_job

_USER = re.compile(r"uid_([0-9]{1,10})", re.ASCII)
_DAEMONS = "slurm"
_EXTERN = "step_extern"
_DEEPEST = 8
_MOST_PROCESSES = 32_768
_LARGEST_LIST = 1024 * 1024
_LONGEST_PID = 7


class JobPids:
    """The jobs of one node."""

    def __init__(self, node: str, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._node = node
        self._root = root
        self._places: dict[int, str] = {}

    def of(self, job_id: int) -> dict[int, bool]:
        """Its pids, and for each whether it belongs to a step that runs the owner's programs."""
        place = self._places.get(job_id) or self._find(job_id)
        if not place:
            return {}
        found: dict[int, bool] = {}
        if not _gather(place, found, 0, own=False):
            self._places.pop(job_id, None)
        return found

    def forget(self, job_id: int) -> None:
        self._places.pop(job_id, None)

    def _find(self, job_id: int) -> str:
        for uid in self._users() or {0}:
            groups = find_job(self._root, self._node, uid, job_id)
            if groups is not None:
                self._places[job_id] = groups.path
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


def _pids(folder: str) -> list[int] | None:
    try:
        file = os.open(f"{folder}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    parts, left = [], _LARGEST_LIST
    try:
        while left > 0 and (part := os.read(file, min(left, 65536))):
            parts.append(part)
            left -= len(part)
    except OSError:
        return None
    finally:
        os.close(file)
    words = b"".join(parts).split()
    # 0 is a process without a pid in this namespace.
    return [int(each) for each in words if each.isdigit() and 0 < len(each) <= _LONGEST_PID
            and int(each)]  # fmt: skip


def _has_folders(folder: str) -> bool:
    # A control group counts its folders as links; listing one takes ten times as long.
    try:
        return os.stat(folder).st_nlink != 2  # noqa: PTH116
    except OSError:
        return False


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
