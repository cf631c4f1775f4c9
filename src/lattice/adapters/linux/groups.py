"""Where Slurm has its control groups on this node, and which jobs have one.

cgroup v1 has a tree for each controller, v2 one for all, a hybrid host both. On v1 the freezer tree
decides which jobs exist: proctrack/cgroup creates and removes it, while folders in other trees may
be left behind. Without it, the first of the other trees decides.

Every folder is watched before it is listed, so nothing can appear unnoticed in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.linux.slurm_names import (
    JobName,
    is_v1_base,
    is_v2_scope,
    job_of,
    user_of,
)

V2 = ""
"""The name of the one hierarchy of cgroup v2."""
_TRUTH = ("freezer", V2, "memory", "cpuacct", "cpu,cpuacct", "cpu", "devices", "cpuset")
_SLICE = "system.slice"
_MOST_JOBS = 4096
"""On one node; further ones are ignored. Slurm itself assigns far fewer."""
_LINKS_OF_EMPTY = 2
"""A control group counts the folders in it as links."""

Watch = Callable[[str], object]
Birth = Callable[[str, os.stat_result], float]


def birth_of_folder(_: str, found: os.stat_result) -> float:
    """When a control group was created.

    The kernel records no such time. But Slurm changes the owner of each folder right after creating
    it, and the kernel then sets all three times. Later steps change the other two. The access time
    of a folder in this file system does not change again.

    Where Slurm leaves the owner (26.05 on v2), all three are of the first access. A later one
    changes the access time.
    """
    return min(found.st_atime, found.st_mtime)


@dataclass(frozen=True, slots=True)
class Base:
    """A folder in which Slurm has users (v1) or jobs (v2)."""

    hierarchy: str
    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)  # noqa: PTH119  paths are text here, for speed


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The control group of one job in the deciding hierarchy."""

    base: Base
    path: str
    name: JobName
    uid: int | None
    inode: int
    born: float
    empty: bool
    """No step has a folder in it."""


def find_bases(root: Path, watch: Watch) -> tuple[Base, ...]:
    """Every folder of Slurm, in any hierarchy below the mount point."""
    if _is_v2(root):
        return tuple(_v2_bases(root, watch))
    bases: list[Base] = []
    # Skips symbolic links: cpu and cpuacct are often two names of one folder.
    for hierarchy in sorted(folders_in(str(root))):
        folder = root / hierarchy
        if _is_v2(folder):
            bases += _v2_bases(folder, watch)
        else:
            watch(str(folder))
            names = [name for name in folders_in(str(folder)) if is_v1_base(name)]
            bases += [Base(hierarchy, f"{folder}/{name}") for name in sorted(names)]
    return tuple(bases)


def _is_v2(folder: Path) -> bool:
    return os.path.exists(folder / "cgroup.controllers")  # noqa: PTH110  never raises


def _v2_bases(root: Path, watch: Watch) -> Iterator[Base]:
    # Without systemd (IgnoreSystemd) the scope has the same path; in a container it may be at the
    # root.
    for parent in (root / _SLICE, root):
        watch(str(parent))
        for name in sorted(folders_in(str(parent))):
            if is_v2_scope(name):
                yield Base(V2, f"{parent}/{name}")


def may_be_base(name: str) -> bool:
    """True if a folder of this name is a reason to search for bases again."""
    return name == _SLICE or is_v2_scope(name) or is_v1_base(name)


def truth_among(bases: Sequence[Base]) -> tuple[Base, ...]:
    """The bases of the hierarchy that decides which jobs exist."""
    ranks = {name: rank for rank, name in enumerate(_TRUTH)}
    best = min((ranks.get(base.hierarchy, len(ranks)) for base in bases), default=None)
    return tuple(base for base in bases if ranks.get(base.hierarchy, len(ranks)) == best)


def find_jobs(
    bases: Sequence[Base], watch: Watch, birth: Birth = birth_of_folder
) -> tuple[JobGroup, ...]:
    """The groups of all jobs below these bases. Skips folders that vanish meanwhile."""
    groups: list[JobGroup] = []
    for base in bases:
        for parent, uid in _parents(base, watch):
            watch(parent)
            for name in folders_in(parent):
                job = job_of(name)
                if job is None or len(groups) >= _MOST_JOBS:
                    continue
                path = f"{parent}/{name}"
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:
                    continue
                born, empty = birth(path, found), found.st_nlink == _LINKS_OF_EMPTY
                groups.append(JobGroup(base, path, job, uid, found.st_ino, born, empty))
    return tuple(groups)


def _parents(base: Base, watch: Watch) -> Iterator[tuple[str, int | None]]:
    if base.hierarchy == V2:
        yield base.path, None
        return
    watch(base.path)
    for name in folders_in(base.path):
        uid = user_of(name)
        if uid is not None:
            yield f"{base.path}/{name}", uid


def folders_in(folder: str) -> list[str]:
    """The names of the folders in a folder; empty if it is gone or closed."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
