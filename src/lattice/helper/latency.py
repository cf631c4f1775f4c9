"""How long the kernel saw each job's reads and writes take, and what its sockets sent again.

The eBPF program (`ebpf/latency.bpf.c`) counts by itself, by the inode of a job's control group;
here it is only read. Which group is a job's is found by names made of its number, never told from
outside. That the program can't run is no failure of the helper: the reason is kept and told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lattice.base.clock import Clock
from lattice.domain.counters import LATENCY, Rows
from lattice.domain.latency import SLOTS, JobTiming, timing_row
from lattice.helper.bpfload import Loaded, Refused, default_object, load
from lattice.helper.bpfmap import BpfMap
from lattice.helper.conversation import CantTell
from lattice.helper.jobgroups import find_job
from lattice.helper.journal import Journal
from lattice.helper.privilege import Kernel

_COUNTERS = SLOTS + 2
"""The slots, the segments sent again, and one that is spare: `struct counts`."""
_RETRANSMITS = SLOTS
_NO_ROOM, _NO_START, _NO_OWNER = range(3)
_V1 = "freezer"
_OFF = "switched off by the site"
_ROOT_INODE = 1
"""Of the uppermost group in every hierarchy."""
_UID = re.compile(r"uid_[0-9]{1,10}", re.ASCII)


class Counters(Protocol):
    """A map of the kernel's."""

    def lookup(self, key: int) -> tuple[int, ...] | None:
        """The counters under a key; None: no such entry. Raises `OSError`."""


@dataclass(frozen=True, slots=True)
class Maps:
    """What is read."""

    jobs: Counters
    namespaces: Counters
    lost: Counters


@dataclass(frozen=True, slots=True)
class JobGroup:
    """The control group that stands for a job here."""

    inode: int
    born: float
    """When Slurm made it, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What is counted of the whole node."""

    no_room: int
    no_start: int
    no_owner: int
    retransmits: int


class LatencyMaps:
    """Answers `latency` of a conversation; or `reason`, why nothing can be told of any job."""

    kinds = frozenset({LATENCY})

    def __init__(
        self,
        maps: Maps | None,
        group_of: Callable[[int], JobGroup | None],
        *,
        since: float = 0.0,
        network: int = 0,
        reason: str = "",
    ) -> None:
        self._maps = maps
        self._group_of = group_of
        self._since = since
        self._network = network
        self.reason = reason
        self.unread: Mapping[int, str] = {}
        """Never any: no process is read."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """A row a job, as `lattice.domain.latency` has them; jobs not on this node are left out.

        Raises `CantTell`.
        """
        if self._maps is None:
            raise CantTell(self.reason)
        try:
            node = _Node(
                no_room=_first(self._maps.lost.lookup(_NO_ROOM)),
                no_start=_first(self._maps.lost.lookup(_NO_START)),
                no_owner=_first(self._maps.lost.lookup(_NO_OWNER)),
                retransmits=_first(self._maps.namespaces.lookup(self._network)),
            )
            rows = {job_id: self._row(self._maps.jobs, node, job_id) for job_id in jobs}
        except OSError as error:
            raise CantTell(f"the kernel refused: {error.strerror}") from error
        told = {job_id: [row] for job_id, row in rows.items() if row}
        return dict.fromkeys(wanted, told)

    def close(self) -> None:
        """The descriptors are the helper's, and the program goes on."""

    def _row(self, counts: Counters, node: _Node, job_id: int) -> list[int]:
        """Of the inode alone for a job that could not be counted."""
        group = self._group_of(job_id)
        if group is None:
            return []
        counted = counts.lookup(group.inode)
        if counted is None:
            if node.no_room:
                return [group.inode]
            # The program saw every call since it began, and none was this job's.
            counted = (0,) * _COUNTERS
        # Sockets that were there before the program are nobody's, and would be missing.
        of_node = group.born < self._since or node.no_owner > 0
        timing = JobTiming(
            inode=group.inode,
            slots=counted[:SLOTS],
            retransmits=node.retransmits if of_node else counted[_RETRANSMITS],
            of_node=of_node,
            lost=node.no_start,
        )
        return timing_row(timing)


def _first(counters: tuple[int, ...] | None) -> int:
    """Of one that may never have counted anything."""
    return counters[0] if counters else 0


def start_latency(
    kernel: Kernel,
    clock: Clock,
    journal: Journal,
    node: str,
    file: Path | None,
    root: Path = Path("/sys/fs/cgroup"),
    *,
    off: bool = False,
) -> LatencyMaps:
    """Load the program and keep what it needs to go on. Never raises; as full root."""
    groups = GroupsByNumber(root, node)
    if off:
        journal.note("no latency", reason=_OFF)
        return LatencyMaps(None, groups, reason=_OFF)
    try:
        loaded = load(file or default_object(), groups.roots)
        network = os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116
    except (Refused, OSError) as error:
        reason = error.reason if isinstance(error, Refused) else str(error)
        last_error = error.last_error if isinstance(error, Refused) else ""
        journal.note("no latency", reason=reason, last_error=last_error)
        return LatencyMaps(None, groups, reason=reason)
    journal.note("latency", programs=len(loaded.links))
    maps = latency_maps(kernel, loaded)
    return LatencyMaps(maps, groups, since=clock.now().timestamp(), network=network)


def latency_maps(kernel: Kernel, loaded: Loaded) -> Maps:
    """What the program counts in, as it laid it out."""
    return Maps(
        jobs=BpfMap(kernel, loaded.jobs, key="Q", counters=_COUNTERS, copies=loaded.cpus),
        namespaces=BpfMap(kernel, loaded.namespaces, key="I", counters=1),
        lost=BpfMap(kernel, loaded.lost, key="I", counters=1),
    )


class GroupsByNumber:
    """Finds the group that the program counts a job under: the freezer's on v1, the one of v2."""

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._node = node

    @property
    def roots(self) -> tuple[int, int]:
        """The groups that this node has for roots, of the freezer and of v2; 0 for a true root."""
        return _root(f"{self._root}/{_V1}"), _root(str(self._root))

    def __call__(self, job_id: int) -> JobGroup | None:
        # In turn: to look for it in the second costs more than all the rest of a question.
        for places in (self._v1, self._v2):
            for path in places(job_id):
                with suppress(OSError):
                    found = os.stat(path)  # noqa: PTH116
                    return JobGroup(found.st_ino, found.st_atime)
        return None

    def _v1(self, job_id: int) -> list[str]:
        places = []
        for base in (f"slurm_{self._node}", "slurm"):
            folder = f"{self._root}/{_V1}/{base}"
            with suppress(OSError):
                owners = [name for name in os.listdir(folder) if _UID.fullmatch(name)]  # noqa: PTH208
                places += [f"{folder}/{owner}/job_{job_id}" for owner in owners]
        return places

    def _v2(self, job_id: int) -> list[str]:
        found = find_job(self._root, self._node, 0, job_id)
        # The owner is part of no name there; he is of those on v1, which were looked at.
        return [each.path for each in found.folders if not each.hierarchy] if found else []


def _root(folder: str) -> int:
    try:
        found = os.stat(folder).st_ino if os.path.exists(f"{folder}/cgroup.procs") else 0  # noqa: PTH110, PTH116
    except OSError:
        return 0
    return 0 if found == _ROOT_INODE else found
