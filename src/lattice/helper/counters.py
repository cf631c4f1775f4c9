"""Counters of jobs' processes from the kernel: `/proc/PID/io` and their network namespaces.

This module returns numbers only, of processes that it finds itself in a job's control group. Only
the owner of a process can open its `io`, so it is opened once with the owner's file rights. The
descriptor stays open: it always means that process, and gives "no such process" when that is gone.
A process is added only if its control group is the job's before and after the open. From then on it
counts while the job's group lists it, or while it is a zombie of the job.

Parents are read before their children, and all are read again if one ended meanwhile. When a child
is reaped, the kernel adds its counts to its parent's. They must be neither missed nor counted
twice.

A process can block its readers. So jobs are read in threads that can be abandoned
(`base.impatience`). A job with such a process is `unread` until its thread returns. Only one thread
at a time uses the records of a job: no other reads the job while one hangs there.
"""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.base.impatience import ImpatientReader
from lattice.base.impatience_threads import Stuck, ThreadProgress
from lattice.domain.counters import (
    IO,
    NETWORK,
    IoCounters,
    NamespaceCounters,
    Rows,
    network_row,
)
from lattice.domain.kerneltext import LOOPBACK, InterfaceCounts, figure, read_devices
from lattice.domain.nodejobs import UNREADABLE
from lattice.helper.jobgroups import JobPids
from lattice.helper.kernel_texts import read_stat, text_of
from lattice.helper.privilege import Kernel
from lattice.helper.process import is_of_job

"""Indexes of the fields of `/proc/PID/stat` after the name."""
_IO = re.compile(
    rb"rchar: ([0-9]{1,20})\nwchar: ([0-9]{1,20})\nsyscr: [0-9]+\nsyscw: [0-9]+\n"
    rb"read_bytes: ([0-9]{1,20})\nwrite_bytes: ([0-9]{1,20})\n"
)


def sum_of_devices(text: str) -> InterfaceCounts | None:
    """Totals over all interfaces except the loopback; None if the text is not such a file."""
    devices = read_devices(text)
    if devices is None:
        return None
    counted = [each for name, each in devices.items() if name != LOOPBACK]
    received, sent, packets, errors = map(sum, zip((0, 0, 0, 0), *counted, strict=True))
    return received, sent, packets, errors


def io_counters(raw: bytes) -> IoCounters | None:
    """Parse `/proc/PID/io`; the kernel always writes the fields in this order."""
    found = _IO.match(raw)
    if found is None:
        return None
    read_chars, written_chars, read_bytes, write_bytes = map(int, found.groups())
    return IoCounters(read_bytes, write_bytes, read_chars, written_chars)


_LARGEST_IO = 512
_PASSES = 3
_LARGEST_DEV = 64 * 1024
_MOST_OPEN = 16_384
_FORGET_S = 300.0
_PATIENCE_S, _WITHIN_S = 0.6, 1.0
"""The agent waits for 1.5 s, and must get the other jobs within that time."""
_MOST_STUCK = 256
_NAMESPACE_S = 30.0
"""How long a process's network namespace is cached."""


@dataclass(slots=True)
class _Known:
    pid: int
    started: int
    parent: int
    own: bool
    file: int
    """A descriptor of its `io`; -1: it could not be opened, or too many are open."""
    gone: bool = False
    namespace: int = 0
    looked_s: float = -_NAMESPACE_S


@dataclass(slots=True)
class _Job:
    asked_s: float
    known: dict[int, _Known]


@dataclass(slots=True)
class _Found:
    """What was read of one job; None: not requested."""

    io: Rows | None = None
    network: Rows | None = None


class JobCounters:
    """Reads `io` and `network` for a conversation; remembers processes between requests."""

    kinds = frozenset({IO, NETWORK})

    def __init__(
        self,
        pids: JobPids,
        kernel: Kernel,
        proc: Path = Path("/proc"),
        *,
        monotonic: Callable[[], float] = time.monotonic,
        most_open: int | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`patience_s`: how long one process may block its reader."""
        self._pids = pids
        self._kernel = kernel
        self._proc = str(proc)
        self._monotonic = monotonic
        # Half of the descriptor limit; the other half is for searching.
        half = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._most_open = min(half, _MOST_OPEN) if most_open is None else most_open
        self._open_files = 0
        self._counting = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._uid = os.geteuid()
        # One thread a job: while one process can't be read there is no sum.
        self._impatient: ImpatientReader[int] = ImpatientReader(
            "counters", patience_s=patience_s, within_s=_WITHIN_S, most_a_key=1, most=_MOST_STUCK
        )
        self.unread: dict[int, str] = {}
        """Of the last request: the jobs that could not be read, and why."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """Rows by kind and job; jobs without a process are left out."""

        def read(job_id: int, progress: ThreadProgress) -> _Found:
            return self._read_job(job_id, wanted, progress)

        tables: dict[str, dict[int, Rows]] = {kind: {} for kind in wanted}
        self.unread = {}
        for job_id, found in self._impatient.read_each(jobs, read).items():
            if isinstance(found, Stuck):
                self.unread[job_id] = UNREADABLE
                continue
            for kind, rows in ((IO, found.io), (NETWORK, found.network)):
                if rows is not None:
                    tables[kind][job_id] = rows
        self._forget_unasked()
        return tables

    def close(self) -> None:
        """Close all descriptors, except for jobs in which a thread hangs: it may return."""
        self._impatient.close()
        for job_id in [each for each in self._jobs if not self._impatient.hangs_for(each)]:
            for known in self._jobs.pop(job_id).known.values():
                self._let_go(known)

    def _read_job(self, job_id: int, wanted: Collection[str], progress: ThreadProgress) -> _Found:
        known = self._scan(job_id, progress)
        found = _Found()
        if known and IO in wanted:
            found.io = self._read_all(known, progress)
        if known and NETWORK in wanted:
            found.network = [network_row(each) for each in self._networks(known, progress)]
        return found

    def _scan(self, job_id: int, progress: ThreadProgress) -> list[_Known]:
        """All processes of the job, oldest first, so that parents precede their children."""
        listed = self._pids.of(job_id)
        job = self._jobs.setdefault(job_id, _Job(0.0, {}))
        job.asked_s = self._monotonic()
        for each in list(job.known.values()):
            progress.reads(each.pid)
            if each.gone or not (each.pid in listed or self._lingers(each, job_id)):
                self._let_go(job.known.pop(each.pid))
        for pid, own in listed.items():
            progress.reads(pid)
            if pid not in job.known and (met := self._met(pid, job_id, own=own)):
                job.known[pid] = met
        for each in job.known.values():
            if each.parent and each.parent not in job.known:
                progress.reads(each.pid)
                each.parent = self._new_parent(each, job.known)
        if not job.known:
            self._jobs.pop(job_id, None)
        return sorted(job.known.values(), key=lambda each: (each.started, each.pid))

    def _met(self, pid: int, job_id: int, *, own: bool) -> _Known | None:
        folder = self._folder(pid)
        if folder < 0:
            return None
        try:
            if not is_of_job(text_of(folder, "cgroup"), job_id):
                return None
            stat = read_stat(text_of(folder, "stat"))
            if stat is None:
                return None
            file = self._opened(folder) if self._open_files < self._most_open else -1
            known = _Known(pid, stat.started, stat.parent, own, file)
            self._count_open(file >= 0)
            if not is_of_job(text_of(folder, "cgroup"), job_id):
                self._let_go(known)
                return None
            return known
        finally:
            os.close(folder)

    def _lingers(self, known: _Known, job_id: int) -> bool:
        """Whether it is still a zombie: ended, not reaped, and not in the group's list."""
        with suppress(ProcessLookupError), self._same(known) as folder:
            return is_of_job(text_of(folder, "cgroup"), job_id)
        return False

    def _new_parent(self, each: _Known, known: Mapping[int, _Known]) -> int:
        """The pid of its new parent after the old one ended; 0 if that is not in this job."""
        with suppress(ProcessLookupError), self._same(each) as folder:
            stat = read_stat(text_of(folder, "stat"))
            return stat.parent if stat and stat.parent in known else 0
        return 0

    def _forget_unasked(self) -> None:
        old = self._monotonic() - _FORGET_S
        unasked = [job_id for job_id, job in list(self._jobs.items()) if job.asked_s < old]
        for job_id in unasked:
            if self._impatient.hangs_for(job_id):
                continue
            for each in self._jobs.pop(job_id).known.values():
                self._let_go(each)
            self._pids.forget(job_id)

    def _let_go(self, known: _Known) -> None:
        if known.file >= 0:
            os.close(known.file)
            self._count_open(-1)
            known.file = -1

    def _count_open(self, more: int) -> None:
        with self._counting:  # an abandoned thread that returns changes it, too
            self._open_files += more

    def _read_all(self, known: Sequence[_Known], progress: ThreadProgress) -> Rows:
        rows: Rows = []
        for _ in range(_PASSES):
            there = [each for each in known if not each.gone]
            rows = [row for each in there if (row := self._row(each, progress))]
            if len(rows) == len(there):
                break
        return rows

    def _row(self, each: _Known, progress: ThreadProgress) -> list[int]:
        """Empty if the process is gone; another process may have its pid by now."""
        progress.reads(each.pid)
        try:
            raw = os.pread(each.file, _LARGEST_IO, 0) if each.file >= 0 else self._once(each)
        except ProcessLookupError:
            each.gone = True
            return []
        except OSError:
            raw = b""
        return [each.pid, each.started, each.parent, *(io_counters(raw) or ())]

    def _once(self, each: _Known) -> bytes:
        """Read `io` where no descriptor is held open."""
        with self._same(each) as folder:
            file = self._opened(folder)
            if file < 0:
                return b""
            try:
                return os.read(file, _LARGEST_IO)
            finally:
                os.close(file)

    def _opened(self, folder: int) -> int:
        """Open its `io` with the file rights of its owner."""
        try:
            owner = os.stat("io", dir_fd=folder).st_uid
            if owner == self._uid:
                return os.open("io", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            self._kernel.set_file_user(owner)
            try:
                return os.open("io", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            finally:
                self._kernel.set_file_user(self._uid)
        except OSError:
            return -1

    def _networks(
        self, known: Sequence[_Known], progress: ThreadProgress
    ) -> list[NamespaceCounters]:
        """Network namespaces of the owner's processes; the node's own is 0, without counts."""
        mine = _namespace(f"{self._proc}/self/ns/net")
        seen: dict[int, _Known] = {}
        now = self._monotonic()
        for each in known:
            progress.reads(each.pid)
            if each.own and not each.gone and now - each.looked_s >= _NAMESPACE_S:
                each.namespace, each.looked_s = 0, now
                with suppress(ProcessLookupError), self._same(each) as folder:
                    each.namespace = _namespace("ns/net", folder)
            if each.namespace:
                seen.setdefault(each.namespace, each)
        return [
            NamespaceCounters(0)
            if inode == mine
            else NamespaceCounters(inode, self._dev(each, progress))
            for inode, each in seen.items()
        ]

    def _dev(self, each: _Known, progress: ThreadProgress) -> InterfaceCounts | None:
        progress.reads(each.pid)
        with suppress(ProcessLookupError), self._same(each) as folder:
            text = text_of(folder, "net/dev", _LARGEST_DEV)
            # A truncated file gives no true sum.
            return sum_of_devices(text) if len(text) < _LARGEST_DEV else None
        return None

    @contextmanager
    def _same(self, each: _Known) -> Iterator[int]:
        """A descriptor of the folder of exactly that process. Raises `ProcessLookupError`."""
        folder = self._folder(each.pid)
        if folder < 0:
            raise ProcessLookupError
        try:
            stat = read_stat(text_of(folder, "stat"))
            if stat is None or stat.started != each.started:
                raise ProcessLookupError
            yield folder
        finally:
            os.close(folder)

    def _folder(self, pid: int) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(f"{self._proc}/{pid}", flags)
        except OSError:
            return -1


def _namespace(link: str, folder: int | None = None) -> int:
    try:
        target = os.readlink(link, dir_fd=folder)
    except OSError:
        return 0
    return figure(target.removeprefix("net:[").removesuffix("]")) or 0
