"""One scan of the node: drains notices, reads changed jobs, and compares snapshots.

It blocks and is not thread-safe; `NodeJobs` owns it and runs the scans. Threads that can be
abandoned (`base.impatience`) read processes. A process that blocks its readers hides only what is
new in its own job, and delays the others for a moment.

Slurm's spool folder has the sockets of its slurmstepds, a second sign of steps. It gives the time
of a change, also where control groups don't. It decides which jobs exist only if Slurm uses no
control groups at all. Then there are steps, but no tasks and no processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from lattice.adapters.linux.groups import (
    Base,
    Birth,
    JobGroup,
    find_bases,
    find_jobs,
    may_be_base,
    truth_among,
)
from lattice.adapters.linux.inotify import FileNotice, Inotify, WatchLimit
from lattice.adapters.linux.job_group_reader import JobReader
from lattice.adapters.linux.proc import Proc
from lattice.adapters.linux.slurm_names import job_of, socket_of, user_of
from lattice.base.clock import Clock
from lattice.base.impatience import PATIENCE_S, ImpatientReader
from lattice.base.impatience_threads import Stuck, ThreadProgress
from lattice.domain.nodejobs import (
    JobAppeared,
    JobEvent,
    JobFolder,
    JobIdentity,
    NodeJob,
    NodeJobEnded,
    NodeStep,
    StartSign,
    StepId,
    compare,
)

_Found = tuple[float, int, StepId]


def read_spool(
    folder: Path, boot_id: str, booted: float, before: Mapping[int, NodeJob]
) -> tuple[NodeJob, ...]:
    """The jobs that have a socket. Skips sockets from before the boot, which a crash left."""
    sockets: dict[int, list[_Found]] = {}
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return ()
    for entry in entries:
        socket = socket_of(entry.name)
        if socket is None or socket.job.job_id is None:
            continue
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if found.st_mtime >= booted:
            each = (found.st_mtime, found.st_ino, socket.step)
            sockets.setdefault(socket.job.job_id, []).append(each)
    return tuple(
        _job(job_id, found, boot_id, before.get(job_id)) for job_id, found in sockets.items()
    )


def _job(job_id: int, found: list[_Found], boot_id: str, before: NodeJob | None) -> NodeJob:
    made, inode, _ = min(found, key=lambda each: each[:2])
    # The first socket is removed with its step; the job retains its identity.
    identity = before.identity if before else JobIdentity(boot_id, job_id, inode, made)
    steps = sorted({step for _, _, step in found}, key=lambda step: step.order)
    return NodeJob(
        identity=identity,
        started_by=StartSign.FOLDER,
        steps=tuple(NodeStep(step) for step in steps),
    )


_log = logging.getLogger(__name__)

_AGAIN_S = (0.2, 1.0, 3.0)
"""A job is read again after its folders changed: tasks and processes follow without a notice."""
_RECENT_S = 60.0
"""The sockets of a job outlive its groups by less than this."""
_MAKING_S = 0.3
"""Slurm needs less time from a job's folder to the first one inside, also on a busy node."""
_MAKING_CHECKS = 30
_NAMELESS_S = 3.0
"""How long a group without a job number waits for a daemon that shows it."""
_UNREAD_AGAIN_S = 3.0
"""When a job that was not completely read is read again."""
_MOST_NAMED = 8

_Key: TypeAlias = tuple[str, int, float]
"""A job's folder in one attempt: path, inode, birth."""


class JobScanner:
    """The snapshot of one node, and the state for updating it."""

    def __init__(
        self,
        proc: Path,
        cgroup: Path,
        spool: Path | None,
        clock: Clock,
        birth: Birth,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: how long one process may block its reader."""
        self._cgroup = cgroup
        self._spool = spool
        self._clock = clock
        self._birth = birth
        self._proc = Proc(proc, lambda: clock.now().timestamp())
        self._boot_id = self._proc.boot_id
        self._reader = JobReader(self._proc, self._boot_id)
        self._impatient: ImpatientReader[_Key] = ImpatientReader(
            "job processes", patience_s=patience_s
        )
        self._bases: tuple[Base, ...] = ()
        self._truth: tuple[Base, ...] = ()
        self._read: dict[str, tuple[JobGroup, NodeJob]] = {}
        self._again: dict[str, list[float]] = {}
        self._nameless: dict[str, float] = {}
        self._recent: dict[int, float] = {}
        """When each job was last seen, for some time after its end."""
        self._wanted: set[JobIdentity] = set()
        self._limit = ""
        self.notices_lost = False
        """True if the kernel dropped notices before the last scan."""
        self.inotify: Inotify | None = None
        self.picture: dict[JobIdentity, NodeJob] = {}

    def close(self) -> None:
        self._impatient.close()
        if self.inotify is not None:
            self.inotify.close()
            self.inotify = None

    @property
    def blind(self) -> bool:
        """True while some folder could not be watched."""
        return bool(self._limit)

    @property
    def trouble(self) -> str | None:
        hidden = "/proc hides processes (hidepid)" if self._proc.hides_processes else ""
        boot = "" if self._boot_id else "the boot id can't be read"
        return "; ".join(text for text in (self._limit, hidden, boot) if text) or None

    @property
    def reading_cpu_s(self) -> float:
        """Processor time of the threads that read processes, for all scans together."""
        return self._impatient.cpu_s

    @property
    def next_reading(self) -> float | None:
        """The monotonic time at which some job should be read again."""
        return min((times[0] for times in self._again.values()), default=None)

    def read_soon(self, identity: JobIdentity) -> None:
        """Read this job in the next scan, changed or not. Thread-safe."""
        self._wanted.add(identity)

    def turn(self, everything: bool) -> tuple[JobEvent, ...]:
        """Scan, and return the events since the last scan."""
        self._limit = ""
        notices = self.inotify.read() if self.inotify else []
        self.notices_lost = any(notice.lost for notice in notices)
        everything = everything or self.notices_lost
        if everything or any(may_be_base(notice.name) for notice in notices):
            self._watch_spool()
            self._bases = find_bases(self._cgroup, self._watch)
            self._truth = truth_among(self._bases)
        groups = self._groups()
        moved = self._moved(notices, groups)
        jobs = self._jobs(groups, None if everything else moved)
        flashes = self._flashes(notices, groups)
        picture = {job.identity: job for job in jobs}
        events = compare(self.picture, picture)
        flashed = [event.job for event in flashes]
        flashes += self._sparks(notices, (*flashed, *self.picture.values(), *picture.values()))
        self.picture = picture
        return (*flashes, *events)

    def _groups(self) -> tuple[JobGroup, ...]:
        """The groups of all jobs; waits briefly for one that is just being created.

        Slurm creates a job's folder, then changes its owner, which changes the birth time, and then
        creates a step's folder inside. Before that the job has no stable identity.
        """
        groups = find_jobs(self._truth, self._watch, self._birth)
        patience = _MAKING_CHECKS
        while patience and any(self._being_made(group) for group in groups):
            patience -= 1
            time.sleep(_MAKING_S / _MAKING_CHECKS)
            groups = find_jobs(self._truth, self._watch, self._birth)
        return groups

    def _being_made(self, group: JobGroup) -> bool:
        young = abs(self._clock.now().timestamp() - group.born) < _MAKING_S
        return group.empty and young and group.path not in self._read

    def _watch(self, folder: str) -> None:
        if self.inotify is None:
            return
        try:
            self.inotify.watch(folder)
        except WatchLimit as limit:
            self._limit = f"{limit}: some jobs are noticed late"

    def _watch_spool(self) -> None:
        if self._spool is not None:
            self._watch(str(self._spool))

    def _jobs(self, groups: tuple[JobGroup, ...], moved: set[str] | None) -> list[NodeJob]:
        """Every job. Reads new ones and those in `moved`, or all if it is None."""
        if not self._bases:
            return self._of_spool()
        remembered, self._read = self._read, {}
        due: dict[_Key, tuple[JobGroup, NodeJob | None]] = {}
        for group in groups:
            last = remembered.get(group.path)
            before = last[1] if last and _same_attempt(last[0], group) else None
            if before is None or moved is None or group.path in moved:
                due[group.path, group.inode, group.born] = group, before
            else:
                self._read[group.path] = group, before
        if due:
            self._read_all(due)
        self._again = {path: at for path, at in self._again.items() if path in self._read}
        self._nameless = {path: at for path, at in self._nameless.items() if path in self._read}
        jobs = [job for path, (_, job) in self._read.items() if self._named(path, job)]
        return [job for job in jobs if not _is_left_over(job)]

    def _read_all(self, due: Mapping[_Key, tuple[JobGroup, NodeJob | None]]) -> None:
        """Read each job, as far as its processes can be read. `due` has its last reading."""

        def read(key: _Key, progress: ThreadProgress) -> NodeJob:
            group, before = due[key]
            return self._reader.read(
                group, self._bases, self._watch, before, progress, progress.skip
            )

        for key, found in self._impatient.read_each(list(due), read).items():
            group, before = due[key]
            if isinstance(found, Stuck):
                job = self._reader.read(group, self._bases, self._watch, before, None, found.pids)
            else:
                job = found
            if isinstance(found, Stuck) or job.unread:
                self._read_again_soon(group.path)
            if job.unread != (before.unread if before is not None else ()):
                _log_unread(job)
            self._read[group.path] = group, job

    def _read_again_soon(self, path: str) -> None:
        at = self._clock.monotonic() + _UNREAD_AGAIN_S
        times = [each for each in self._again.get(path, ()) if each < at]
        self._again[path] = [*times, at]

    def _named(self, path: str, job: NodeJob) -> bool:
        if job.id:
            return True
        now = self._clock.monotonic()
        return now - self._nameless.setdefault(path, now) >= _NAMELESS_S

    def _of_spool(self) -> list[NodeJob]:
        if self._spool is None:
            return []
        before = {job.id: job for job in self.picture.values()}
        return list(read_spool(self._spool, self._boot_id, self._proc.booted or 0, before))

    def _moved(self, notices: list[FileNotice], groups: tuple[JobGroup, ...]) -> set[str]:
        """Groups with changed folders, and those that are due to be read again."""
        now = self._clock.monotonic()
        due = {path for path, times in self._again.items() if times[0] <= now}
        for path in due:
            self._again[path] = [at for at in self._again[path] if at > now]
        self._again = {path: times for path, times in self._again.items() if times}
        wanted, self._wanted = self._wanted, set()
        due |= {path for path, (_, job) in self._read.items() if job.identity in wanted}
        touched = self._touched(notices, groups)
        touched |= {group.path for group in groups} - self._read.keys()
        for path in touched:
            self._again[path] = [now + wait_s for wait_s in _AGAIN_S]
        return due | touched

    def _touched(self, notices: list[FileNotice], groups: tuple[JobGroup, ...]) -> set[str]:
        paths = {notice.folder for notice in notices}
        paths |= {f"{notice.folder}/{notice.name}" for notice in notices}
        sockets = {
            socket.job
            for notice in notices
            if notice.folder == str(self._spool) and (socket := socket_of(notice.name))
        }
        return {group.path for group in groups if group.path in paths or group.name in sockets}

    def _flashes(self, notices: list[FileNotice], groups: tuple[JobGroup, ...]) -> list[JobEvent]:
        """Jobs that came and went between two scans: only their names are known."""
        there = {group.path for group in groups}
        ended = {folder.path for job in self.picture.values() for folder in job.folders[:1]}
        events: list[JobEvent] = []
        for notice in notices:
            path = f"{notice.folder}/{notice.name}"
            name = job_of(notice.name)
            if not notice.made or name is None or path in there or path in ended:
                continue
            ended.add(path)
            base = next((each for each in self._truth if path.startswith(each.path + "/")), None)
            if base is None:
                continue
            now = self._clock.now().timestamp()
            job = NodeJob(
                identity=JobIdentity(self._boot_id, name.job_id or 0, 0, now),
                started_by=StartSign.SEEN,
                uid=user_of(os.path.basename(notice.folder)),  # noqa: PTH119
                sluid=name.sluid,
                folders=(JobFolder(base.hierarchy, path),),
            )
            events += [JobAppeared(job), NodeJobEnded(job)]
        return events

    def _sparks(self, notices: list[FileNotice], seen: Iterable[NodeJob]) -> list[JobEvent]:
        """Jobs that only their sockets show.

        A user's folder is created with the first job and removed with the last. So it was not
        watched yet when the job's own folder came and went inside. The sockets of its steps are in
        a permanent folder. If a socket still exists, its groups may still appear. If its job was
        seen recently, it belongs to that job.
        """
        now = self._clock.monotonic()
        self._recent.update((job.id, now) for job in seen)
        self._recent = {job: at for job, at in self._recent.items() if now - at < _RECENT_S}
        events: list[JobEvent] = []
        for notice in notices:
            socket = socket_of(notice.name) if notice.folder == str(self._spool) else None
            job_id = socket.job.job_id if socket else None
            if job_id is None or job_id in self._recent:
                continue
            if Path(notice.folder, notice.name).exists():
                continue
            self._recent[job_id] = now
            started = self._clock.now().timestamp()
            job = NodeJob(
                identity=JobIdentity(self._boot_id, job_id, 0, started), started_by=StartSign.SEEN
            )
            events += [JobAppeared(job), NodeJobEnded(job)]
        return events


def _log_unread(job: NodeJob) -> None:
    if job.unread:
        pids = ", ".join(map(str, job.unread[:_MOST_NAMED]))
        _log.warning("job %d: the kernel holds whoever reads its processes: %s", job.id, pids)
    else:
        _log.warning("job %d: its processes can be read again", job.id)


def _is_left_over(job: NodeJob) -> bool:
    """True if Slurm has ended the job, and a folder that Slurm does not know keeps its groups.

    A process that outlived its terminal was in it. The number shows that daemons were there.
    """
    known = job.sluid is not None and job.id > 0 and not job.unread
    return known and not job.daemons and not job.processes


def _same_attempt(one: JobGroup, other: JobGroup) -> bool:
    # Old kernels reuse a freed inode number for the next folder, but that has a later birth. A
    # unique id is of one run, and its folder may have no time of birth.
    if one.name.sluid is not None:
        return one.name == other.name
    return one.inode == other.inode and one.born == other.born
