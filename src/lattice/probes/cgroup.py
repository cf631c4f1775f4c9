"""A job's control groups, v1 and v2: processor time, memory, out-of-memory kills, pressure.

The probe reads the job's own folder. Its counters include everything below it, so steps may come
and go. For two counters that is not so, and the probe carries the counts of ended steps itself. On
v1 a kill is counted only in the folder of the killed process. And on some nodes only steps have
processor time. On v1 a step that starts and ends with a kill between two readings is missed.

On v2 Slurm's own daemons are inside the job's folder, one for each step. Their processor time is
not the job's, and is subtracted while they run. That of ended steps stays in the counter. After a
restart the agent could not know it, and a counter that jumps is worse than one that is a little
high. Their memory is part of the job's, as it is for the limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from lattice.base.clock import Clock
from lattice.domain.kerneltext import figure
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.kernel_files import Carried, OfJobs, figures, folders_in, read_text, reading
from lattice.probes.probe import ProbeRoots, ProbeSite

_V2 = ""
UNLIMITED_BYTES = 1 << 62
"""Without a limit v1 has a value near 2^63, less a page of any size."""
_MOST_CPUS = 1 << 20
_DEEPEST = 8
_MOST_FOLDERS = 4096
_STEP = "step_"
_DAEMONS = "slurm"
_USEC = 1e6
_NSEC = 1e9
NO_GROUP = "the job has no control group of `{}`"
NO_LIMIT = "no limit is set"
NOT_REPORTED = "the kernel does not tell it"
NO_PRESSURE = "cgroup v1 tells no pressure per job"
_RESOURCES = ("cpu", "io", "memory")
_SHARES = ("some", "full")
_V1_CPUS = ("cpuset.effective_cpus", "cpuset.cpus")


@dataclass(slots=True)
class _JobState:
    """State of one job between readings."""

    whole: bool = False
    """Whether the job's own folder has its processor time."""
    own: int = 0
    """Its last value, without Slurm's daemons."""
    cpu: Carried = field(default_factory=Carried)
    kills: Carried = field(default_factory=Carried)


class CgroupProbe:
    """Reads kernel files that every user can read."""

    name = "cgroup"
    metrics = frozenset(
        {
            "cpu_seconds_total",
            "cpu_cores",
            "memory_used_bytes",
            "memory_cache_bytes",
            "memory_limit_bytes",
            "memory_oom_kills_total",
            "pressure_seconds_total",
        }
    )
    own_thread = False

    def __init__(self, roots: ProbeRoots, clock: Clock) -> None:
        self._root = str(roots.cgroup)
        self._clock = clock
        self._states: OfJobs[_JobState] = OfJobs(_JobState)

    @classmethod
    def on(cls, site: ProbeSite) -> CgroupProbe:
        return cls(site.roots, site.clock)

    def read(self, jobs: Sequence[NodeJob]) -> Mapping[JobIdentity, Sequence[MetricReading]]:
        return {job.identity: self._job(job) for job in jobs}

    def _job(self, job: NodeJob) -> list[MetricReading]:
        folders = _JobFolders(job)
        now = self._clock.now().timestamp()
        state = self._states[job.identity]
        return [
            _cpu_seconds(folders, state, now),
            _cpu_cores(folders, now),
            *self._memory(folders, now),
            _kills(folders, state, now),
            *_pressure(folders, now),
        ]

    def _memory(self, folders: _JobFolders, now: float) -> list[MetricReading]:
        """`memory.stat` has used memory and cache, and on v1 the limit too."""
        folder = folders.of("memory")
        if folder is None:
            reason = NO_GROUP.format("memory")
            names = ("memory_used_bytes", "memory_cache_bytes", "memory_limit_bytes")
            return [Absence(name, reason) for name in names]
        stat = figures(read_text(f"{folder}/memory.stat"))
        if folders.is_v2:
            limit = _tightest(folder, self._root)
        else:
            limit = stat.get("hierarchical_memory_limit", NOT_REPORTED)
        return [*used_memory(stat, v2=folders.is_v2, now=now), _limit(limit, now)]


class _JobFolders:
    """The job's folder for each controller; on v2 there is one for all."""

    __slots__ = ("_folders", "is_v2")

    def __init__(self, job: NodeJob) -> None:
        self.is_v2 = any(each.hierarchy == _V2 for each in job.folders[:1])
        self._folders = {
            name: each.path for each in reversed(job.folders) for name in each.hierarchy.split(",")
        }

    def of(self, controller: str) -> str | None:
        return self._folders.get(_V2 if self.is_v2 else controller)


def _cpu_seconds(folders: _JobFolders, state: _JobState, now: float) -> MetricReading:
    metric = "cpu_seconds_total"
    folder = folders.of("cpuacct")
    if folder is None:
        return Absence(metric, NO_GROUP.format("cpuacct"))
    unit = _USEC if folders.is_v2 else _NSEC
    whole = _cpu_of(folder, v2=folders.is_v2)
    if whole is not None:
        state.whole = True
        # The two are read one after the other; that must not make the difference fall.
        state.own = max(state.own, whole - (_daemons(folder) if folders.is_v2 else 0))
        return reading(metric, state.own / unit, now)
    # After the job's own value, the sum of steps would count their time again.
    steps = {} if state.whole else _of_each(_inside(folder), lambda at: _cpu_of(at, folders.is_v2))
    if state.whole or not (steps or (state.cpu.known and _exists(folder))):
        return Absence(metric, NOT_REPORTED)
    return reading(metric, state.cpu.total(steps) / unit, now)


def _cpu_of(folder: str, v2: bool) -> int | None:
    if v2:
        return figures(read_text(f"{folder}/cpu.stat")).get("usage_usec")
    return figure(read_text(f"{folder}/cpuacct.usage"))


def _daemons(job: str) -> int:
    """The processor time of Slurm's daemons of a job's steps, on v2."""
    steps = (each for each in _inside(job) if each.startswith(f"{job}/{_STEP}"))
    return sum(_cpu_of(f"{each}/{_DAEMONS}", v2=True) or 0 for each in steps)


def _cpu_cores(folders: _JobFolders, now: float) -> MetricReading:
    """How many cores limit the job: by a CPU set, by a quota, or by both."""
    sets, quotas = folders.of("cpuset"), folders.of("cpu")
    held: list[float] = []
    if sets is not None:
        names = ("cpuset.cpus.effective",) if folders.is_v2 else _V1_CPUS
        counts = (count_cpus(read_text(f"{sets}/{name}")) for name in names)
        held += islice((each for each in counts if each is not None), 1)
    if quotas is not None:
        held += [each for each in (_quota(quotas, v2=folders.is_v2),) if each is not None]
    if not held:
        return Absence("cpu_cores", "the job is not held to cores")
    return reading("cpu_cores", min(held), now)


def _quota(folder: str, *, v2: bool) -> float | None:
    if v2:
        fields = (read_text(f"{folder}/cpu.max") or "").split()
        quota, period = (figure(each) for each in fields) if len(fields) == 2 else (None, None)
    else:
        quota = figure(read_text(f"{folder}/cpu.cfs_quota_us"))
        period = figure(read_text(f"{folder}/cpu.cfs_period_us"))
    return quota / period if quota and period else None


def count_cpus(text: str | None) -> int | None:
    """The number of CPUs in a list such as `0-3,8`; None if it is malformed or empty."""
    count = 0
    for part in (text or "").strip().split(","):
        first, dash, last = part.partition("-")
        low, high = figure(first), figure(last if dash else first)
        if low is None or high is None or not low <= high < _MOST_CPUS:
            return None
        count += high - low + 1
    return count


def used_memory(stat: Mapping[str, int], *, v2: bool, now: float) -> list[MetricReading]:
    """Resident and shared memory; and page cache, which the kernel can reclaim."""
    names = ("anon", "shmem", "file") if v2 else ("total_rss", "total_shmem", "total_cache")
    resident, shared, files = (stat.get(name) for name in names)
    if resident is None or shared is None:
        used: MetricReading = Absence("memory_used_bytes", NOT_REPORTED)
    else:
        used = reading("memory_used_bytes", resident + shared, now)
    if files is None or shared is None:
        return [used, Absence("memory_cache_bytes", NOT_REPORTED)]
    return [used, reading("memory_cache_bytes", files - shared, now)]


def _limit(limit: int | str, now: float) -> MetricReading:
    metric = "memory_limit_bytes"
    if isinstance(limit, str):
        return Absence(metric, limit)
    return Absence(metric, NO_LIMIT) if limit >= UNLIMITED_BYTES else reading(metric, limit, now)


def _tightest(folder: str, root: str) -> int | str:
    """The lowest limit on v2, from the job's folder up to the root; or why it is not known."""
    found: list[int] = []
    read = False
    while len(folder) > len(root) and folder.startswith(root):
        text = read_text(f"{folder}/memory.max")
        if text is not None:
            read = True
            limit = figure(text)
            if limit is not None:
                found.append(limit)
            elif text.strip() != "max":
                return NOT_REPORTED
        folder = os.path.dirname(folder)  # noqa: PTH120  paths are text here, for speed
    if not read:
        return "control groups do not limit memory here"
    return min(found, default=UNLIMITED_BYTES)


def _kills(folders: _JobFolders, state: _JobState, now: float) -> MetricReading:
    metric = "memory_oom_kills_total"
    folder = folders.of("memory")
    if folder is None:
        return Absence(metric, NO_GROUP.format("memory"))
    if folders.is_v2:
        count = figures(read_text(f"{folder}/memory.events")).get("oom_kill")
        return Absence(metric, NOT_REPORTED) if count is None else reading(metric, count, now)
    counts = _of_each([folder, *_below(folder, 0)], _kills_of)
    if folder not in counts:
        return Absence(metric, NOT_REPORTED)
    return reading(metric, state.kills.total(counts), now)


def _kills_of(folder: str) -> int | None:
    return figures(read_text(f"{folder}/memory.oom_control")).get("oom_kill")


def _pressure(folders: _JobFolders, now: float) -> list[MetricReading]:
    metric = "pressure_seconds_total"
    folder = folders.of(_V2)
    if not folders.is_v2 or folder is None:
        return [Absence(metric, NO_PRESSURE)]
    found: list[MetricReading] = []
    for resource in _RESOURCES:
        for share, total in _stalls(read_text(f"{folder}/{resource}.pressure")):
            labels = labelled(resource=resource, share=share)
            found.append(reading(metric, total / _USEC, now, labels))
    return found or [Absence(metric, "this kernel keeps no pressure; its option is psi=1")]


def _stalls(text: str | None) -> Iterator[tuple[str, int]]:
    """Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`, in microseconds."""
    for line in (text or "").split("\n"):
        fields = line.split()
        total = figure(fields[-1].removeprefix("total=")) if len(fields) == 5 else None
        if total is not None and fields[0] in _SHARES and fields[-1].startswith("total="):
            yield fields[0], total


def _of_each(folders: Iterable[str], of: Callable[[str], int | None]) -> dict[Hashable, int]:
    found = ((folder, of(folder)) for folder in folders)
    return {folder: value for folder, value in found if value is not None}


def _below(folder: str, depth: int) -> Iterator[str]:
    if depth < _DEEPEST:
        for each in _inside(folder):
            yield each
            yield from _below(each, depth + 1)


def _inside(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in folders_in(folder)[:_MOST_FOLDERS]]


def _exists(folder: str) -> bool:
    return os.path.isdir(folder)  # noqa: PTH112
