"""How long the kernel's reads and writes took for each job, and what its sockets sent again.

The eBPF program (`ebpf/latency.bpf.c`) counts by the inode of a job's control group; this module
only reads the counts. It builds the path of a job's group from the job's number, and never takes it
from a request. If the program can't run, the helper continues and reports the reason.

Values are read from the eBPF maps by their descriptors: one system call, no library.

From kernel 5.19 on, a lookup needs only the descriptor and no capability.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.base.clock import Clock
from lattice.domain.counters import LATENCY, Rows
from lattice.domain.latency import (
    ELSEWHERE,
    JOB_COUNTERS,
    SLOTS,
    FileCalls,
    JobTiming,
    calls_by_device,
    timing_row,
)
from lattice.helper.bpfload import Loaded, Refused, default_object, load
from lattice.helper.conversation import NoValues
from lattice.helper.jobgroups import find_job
from lattice.helper.journal import HelperJournal
from lattice.helper.privilege import Kernel

CALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
_LOOKUP = 1


class _Lookup(ctypes.Structure):
    _fields_ = (
        ("map", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class BpfMap:
    """A map with values of `counters` 64-bit counters, either one copy or one for each CPU."""

    def __init__(
        self, kernel: Kernel, descriptor: int, *, key: str, counters: int, copies: int = 1
    ) -> None:
        self._kernel = kernel
        self._number = CALL_NUMBERS.get(os.uname().machine)
        self._descriptor = descriptor
        self._key = struct.Struct(f"={key}")
        self._counters = counters
        self._copies = copies

    def lookup(self, key: int) -> tuple[int, ...] | None:
        """The counters of a key, summed over all CPUs; None: no such entry. Raises `OSError`."""
        raw = self._raw(key)
        return None if raw is None else summed(raw, self._counters)

    def copies(self, key: int) -> list[tuple[int, ...]]:
        """The counters of a key by CPU; empty: no such entry. Raises `OSError`."""
        return list(struct.iter_unpack(f"={self._counters}Q", self._raw(key) or b""))

    def _raw(self, key: int) -> bytes | None:
        if self._number is None:
            raise OSError(0, "no number of the call bpf for this machine")
        raw_key = ctypes.create_string_buffer(self._key.pack(key))
        # The kernel writes the map's full value size, whatever the size of the buffer.
        value = (ctypes.c_uint64 * (self._counters * self._copies))()
        asked = _Lookup(self._descriptor, 0, ctypes.addressof(raw_key), ctypes.addressof(value), 0)
        try:
            self._kernel.call(self._number, _LOOKUP, ctypes.addressof(asked), ctypes.sizeof(asked))
        except FileNotFoundError:
            return None
        return bytes(value)


def summed(raw: bytes, counters: int) -> tuple[int, ...]:
    """Add up consecutive copies, each counter on its own."""
    copy = struct.Struct(f"={counters}Q")
    total, none = [0] * counters, bytes(copy.size)
    for at in range(0, len(raw), copy.size):
        part = raw[at : at + copy.size]
        # A job uses few CPUs of a large node, and comparing is faster than adding.
        if part != none:
            total = [one + other for one, other in zip(total, copy.unpack(part), strict=True)]
    return tuple(total)


_RETRANSMITS = SLOTS
_NO_ROOM, _NO_START, _NO_OWNER = range(3)
_V1 = "freezer"
_OFF = "switched off by the site"
_ROOT_INODE = 1
"""Of the uppermost group in every hierarchy."""
_UID = re.compile(r"uid_[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Maps:
    jobs: BpfMap
    namespaces: BpfMap
    lost: BpfMap


@dataclass(frozen=True, slots=True)
class LatencyGroup:
    """The control group that identifies a job here."""

    inode: int
    born: float
    """When Slurm created it, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """Counters of the whole node."""

    no_room: int
    no_start: int
    no_owner: int
    retransmits: int


class LatencyMaps:
    """Reads `latency` for a conversation. `reason` is why there are no values for any job."""

    kinds = frozenset({LATENCY})

    def __init__(
        self,
        maps: Maps | None,
        group_of: Callable[[int], LatencyGroup | None],
        *,
        since: float = 0.0,
        network: int = 0,
        reason: str = "",
        loaded: Loaded | None = None,
    ) -> None:
        self._maps = maps
        self.group_of = group_of
        self.since = since
        self.loaded = loaded
        self._network = network
        self.reason = reason
        self.unread: Mapping[int, str] = {}
        """Always empty: no process is read."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """One row a job, as in `lattice.domain.latency`; jobs not on this node are left out.

        Raises `NoValues`.
        """
        if self._maps is None:
            raise NoValues(self.reason)
        try:
            node = _Node(
                no_room=_first(self._maps.lost.lookup(_NO_ROOM)),
                no_start=_first(self._maps.lost.lookup(_NO_START)),
                no_owner=_first(self._maps.lost.lookup(_NO_OWNER)),
                retransmits=_first(self._maps.namespaces.lookup(self._network)),
            )
            rows = {job_id: self._row(self._maps.jobs, node, job_id) for job_id in jobs}
        except OSError as error:
            raise NoValues(f"the kernel refused: {error.strerror}") from error
        by_job = {job_id: [row] for job_id, row in rows.items() if row}
        return dict.fromkeys(wanted, by_job)

    def calls(self, job_id: int) -> Mapping[str, FileCalls]:
        """What the job read and wrote on each file system, by device. Raises `NoValues`.

        A file system that is missing was not used, unless there was no room for it.
        """
        if self._maps is None:
            raise NoValues(self.reason)
        group = self.group_of(job_id)
        if group is None:
            raise NoValues("the job has no control group here")
        try:
            copies = self._maps.jobs.copies(group.inode)
            no_room = not copies and _first(self._maps.lost.lookup(_NO_ROOM))
        except OSError as error:
            raise NoValues(f"the kernel refused: {error.strerror}") from error
        if no_room:
            raise NoValues("more jobs on this node than the kernel was given room to count")
        if any(copy[ELSEWHERE] for copy in copies):
            raise NoValues("the job uses more file systems than the kernel has room to count")
        return calls_by_device(copies)

    def close(self) -> None:
        """Do nothing: the helper owns the descriptors, and the program continues."""

    def _row(self, counts: BpfMap, node: _Node, job_id: int) -> list[int]:
        """Only the inode for a job that could not be counted."""
        group = self.group_of(job_id)
        if group is None:
            return []
        counted = counts.lookup(group.inode)
        if counted is None:
            if node.no_room:
                return [group.inode]
            # The program saw every call since it started, and none was this job's.
            counted = (0,) * JOB_COUNTERS
        # Sockets that are older than the program have no owner and would be missing.
        of_node = group.born < self.since or node.no_owner > 0
        timing = JobTiming(
            inode=group.inode,
            slots=counted[:SLOTS],
            retransmits=node.retransmits if of_node else counted[_RETRANSMITS],
            of_node=of_node,
            lost=node.no_start,
        )
        return timing_row(timing)


def _first(counters: tuple[int, ...] | None) -> int:
    """0 if the map has no entry yet."""
    return counters[0] if counters else 0


def start_latency(
    kernel: Kernel,
    clock: Clock,
    journal: HelperJournal,
    node: str,
    file: Path | None,
    root: Path = Path("/sys/fs/cgroup"),
    *,
    off: bool = False,
) -> LatencyMaps:
    """Load the program and keep its descriptors. Never raises. Needs full root."""
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
    since = clock.now().timestamp()
    return LatencyMaps(maps, groups, since=since, network=network, loaded=loaded)


def latency_maps(kernel: Kernel, loaded: Loaded) -> Maps:
    """The maps of the loaded program, with its layout."""
    return Maps(
        jobs=BpfMap(kernel, loaded.jobs, key="Q", counters=JOB_COUNTERS, copies=loaded.cpus),
        namespaces=BpfMap(kernel, loaded.namespaces, key="I", counters=1),
        lost=BpfMap(kernel, loaded.lost, key="I", counters=1),
    )


class GroupsByNumber:
    """Finds the group under which the program counts a job: the freezer's on v1, or that of v2."""

    def __init__(self, root: Path, node: str) -> None:
        self._root = root
        self._node = node

    @property
    def roots(self) -> tuple[int, int]:
        """Inodes of this node's root groups, of the freezer and of v2; 0 for a true root."""
        return _root(f"{self._root}/{_V1}"), _root(str(self._root))

    def __call__(self, job_id: int) -> LatencyGroup | None:
        for path in self._paths(job_id):
            with suppress(OSError):
                found = os.stat(path)  # noqa: PTH116
                return LatencyGroup(found.st_ino, found.st_atime)
        return None

    def _paths(self, job_id: int) -> Iterator[str]:
        for base in (f"slurm_{self._node}", "slurm"):
            folder = f"{self._root}/{_V1}/{base}"
            with suppress(OSError):
                owners = [name for name in os.listdir(folder) if _UID.fullmatch(name)]  # noqa: PTH208
                yield from (f"{folder}/{owner}/job_{job_id}" for owner in owners)
        # Last, because searching v2 takes longer than the rest of a request. On v2 the path has no
        # owner; on v1 it has, and those came before.
        found = find_job(self._root, self._node, 0, job_id)
        yield from (each.path for each in found.folders if not each.hierarchy) if found else ()


def _root(folder: str) -> int:
    try:
        found = os.stat(folder).st_ino if os.path.exists(f"{folder}/cgroup.procs") else 0  # noqa: PTH110, PTH116
    except OSError:
        return 0
    return 0 if found == _ROOT_INODE else found
