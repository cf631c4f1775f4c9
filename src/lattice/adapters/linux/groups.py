"""Where Slurm keeps its control groups on this node, and which jobs have one.

cgroup v1 has a tree for each controller, v2 one for all, a hybrid host both. On v1 the freezer
tree is the truth about what there is: it is the one that proctrack/cgroup keeps and clears, while
others are known to be left behind. Where it is missing, the first of the others speaks.

Every folder is watched before it is listed, so nothing can appear in between unseen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.adapters.linux.naming import (
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
"""On one node; what is beyond is not looked at. Slurm itself gives out far fewer."""
_LINKS_OF_EMPTY = 2
"""A control group counts the folders in it as links."""

Watch = Callable[[str], object]
Birth = Callable[[str, os.stat_result], float]


def birth_of_folder(_: str, found: os.stat_result) -> float:
    """When a control group was made.

    The kernel keeps no such time. But Slurm changes the owner of each folder right after making
    it, at which the kernel writes down the moment as all three times; later steps move the other
    two, while the access time of a folder in this file system never moves again.
    """
    return found.st_atime


@dataclass(frozen=True, slots=True)
class Base:
    """A folder under which Slurm keeps users (v1) or jobs (v2)."""

    hierarchy: str
    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)  # noqa: PTH119  paths are text here, for speed


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The control group of one job in the hierarchy that is the truth."""

    base: Base
    path: str
    name: JobName
    uid: int | None
    inode: int
    born: float
    empty: bool
    """No step has a folder in it."""


def find_bases(root: Path, watch: Watch) -> tuple[Base, ...]:
    """Every folder of Slurm's, in any hierarchy below the mount point."""
    if _is_v2(root):
        return tuple(_v2_bases(root, watch))
    bases: list[Base] = []
    # Links are left out: cpu and cpuacct are often two names of one folder.
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
    # Without systemd (IgnoreSystemd) the scope has the same place; in a container it may be bare.
    for parent in (root / _SLICE, root):
        watch(str(parent))
        for name in sorted(folders_in(str(parent))):
            if is_v2_scope(name):
                yield Base(V2, f"{parent}/{name}")


def may_be_base(name: str) -> bool:
    """True if a folder of this name is a reason to look for bases again."""
    return name == _SLICE or is_v2_scope(name) or is_v1_base(name)


def truth_among(bases: Sequence[Base]) -> tuple[Base, ...]:
    """Those of the one hierarchy that says which jobs there are."""
    ranks = {name: rank for rank, name in enumerate(_TRUTH)}
    best = min((ranks.get(base.hierarchy, len(ranks)) for base in bases), default=None)
    return tuple(base for base in bases if ranks.get(base.hierarchy, len(ranks)) == best)


def find_jobs(
    bases: Sequence[Base], watch: Watch, birth: Birth = birth_of_folder
) -> tuple[JobGroup, ...]:
    """The groups of all jobs below these bases. What vanishes on the way is left out."""
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
    """The names of the folders in a folder; none if it is gone or closed."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
