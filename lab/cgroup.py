"""Control groups of a lab: one per node, one for the rest.

A node enters its own cgroup namespace, so it sees its group as the root of every hierarchy:
`slurm_n1` of two labs never meet, and a node can't see another's jobs. The group in the v2
hierarchy also holds every process of the lab, whatever its environment says, which makes the
last sweep complete: `cgroup.kill` reaches what has forgotten its marker.

Needs a hybrid host (v1 controllers with a v2 tree beside them); Slurm's cgroup/v2 plugin is
exercised by the VM node instead.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.command import LabError

_POLL_S = 0.02
_NODES_WEIGHT = 4 * 1024
_FREEZERS = (
    ("cgroup.freeze", "0", ("1",)),
    ("freezer.state", "THAWED", ("FROZEN", "FREEZING")),
)
"""Of v2 and of v1: the file, what thaws, and what it holds otherwise."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mounted hierarchies of the host: v1 ones by mount point, and the v2 tree."""

    v1: tuple[Path, ...]
    v2: Path

    @classmethod
    def of_host(cls, mounts: str | None = None) -> Hierarchies:
        text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
        entries = [line.split() for line in text.splitlines()]
        v1 = tuple(Path(entry[1]) for entry in entries if entry[2] == "cgroup")
        v2 = [Path(entry[1]) for entry in entries if entry[2] == "cgroup2"]
        if not v1 or not v2:
            raise LabError("the lab needs cgroup v1 controllers with a cgroup2 tree beside them")
        return cls(v1, v2[0])

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.v1, self.v2)


class ControlGroup:
    """One group, at the same relative path in some or all hierarchies."""

    def __init__(self, hierarchies: Hierarchies, path: str, *, everywhere: bool) -> None:
        self._hierarchies = hierarchies
        self._path = path
        self._roots = hierarchies.all if everywhere else (hierarchies.v2,)

    @property
    def procs_files(self) -> list[Path]:
        """Files a process writes its pid to in order to join."""
        return [root / self._path / "cgroup.procs" for root in self._roots]

    @property
    def in_nftables(self) -> str:
        """The words that match what its sockets send and get; it must have been joined first."""
        place = self._v2.relative_to("/sys/fs/cgroup")
        return f'socket cgroupv2 level {len(Path(self._path).parts)} "{place}"'

    @property
    def _v2(self) -> Path:
        return self._hierarchies.v2 / self._path

    def create(self) -> None:
        for root in self._roots:
            group = root
            for part in Path(self._path).parts:
                parent, group = group, group / part
                group.mkdir(exist_ok=True)
                # A new v1 cpuset has neither CPUs nor memory and takes no process until it has.
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if root in self._hierarchies.v1 and (group / name).exists():
                        (group / name).write_text((parent / name).read_text())
            _weigh(group.parent, root)

    def pids(self) -> list[int]:
        found: list[int] = []
        for group in _groups(self._v2):
            with suppress(OSError):
                found += [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        return found

    def kill(self) -> None:
        """SIGKILL everything inside, at once and including what is being forked."""
        with suppress(FileNotFoundError):
            (self._v2 / "cgroup.kill").write_text("1")

    def freeze(self, frozen: bool = True) -> None:
        (self._v2 / "cgroup.freeze").write_text("1" if frozen else "0")

    def thaw(self) -> None:
        """Let everything inside go on. A process that a v1 group holds can't even be killed."""
        for root in self._hierarchies.all:
            for group in _groups(root / self._path):
                for name, thawed, frozen in _FREEZERS:
                    with suppress(OSError):  # not of this hierarchy, or removed meanwhile
                        if (group / name).read_text().strip() in frozen:
                            (group / name).write_text(thawed)

    def remove(self, timeout_s: float = 30.0) -> None:
        """Kill what is inside and remove the group with all below it, in every hierarchy."""
        self.thaw()
        self.kill()
        deadline = time.monotonic() + timeout_s
        while not self.try_remove():
            if time.monotonic() > deadline:
                raise LabError(f"control group {self._path} is still in use by {self.pids()}")
            time.sleep(_POLL_S)

    def try_remove(self) -> bool:
        """Remove what can be removed now, and return whether that is all of it."""
        left = [root for root in self._hierarchies.all if not _removed(root / self._path)]
        if left:
            return False
        for root in self._hierarchies.all:
            for parent in list(Path(self._path).parents)[:-1]:
                with suppress(OSError):  # another lab still lives below it
                    (root / parent).rmdir()
        return True


def _weigh(group: Path, root: Path) -> None:
    """What is above a node gets the weight of its nodes, and not of one process among the host's.

    The host's other processes have a group a session each; all nodes of all labs would share the
    processors as one of these does.
    """
    while group != root:
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(_NODES_WEIGHT))
        group = group.parent


def _removed(group: Path) -> bool:
    for folder in reversed(_groups(group)):
        with suppress(OSError):
            folder.rmdir()
    return not group.exists()


def _groups(group: Path) -> list[Path]:
    """The group and all below it, parents first; some may be removed while this looks."""
    return [Path(folder) for folder, _, _ in os.walk(group)]
