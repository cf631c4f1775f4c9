"""What the kernel counts of jobs' own processes: `/proc/PID/io`, and the networks they are in.

Numbers only, of processes that this module finds itself in the control group of a job. `io` is
closed to everyone but the owner of the process, so it is opened with his file rights, once; the
descriptor stays, because it means that very process for ever and answers "no such process" when
that is gone. A process is met only while its control group is the job's, before and after it was
opened; from then on it counts while the job's group lists it, or while it is a zombie of the job.

Parents are read before their children, and all again if one went meanwhile: what a child had done
is added to its parent's figures when it is reaped, and must neither be missed nor counted twice.

A process can hold whoever reads it. So jobs are read by threads that can be left behind
(`base.impatience`), and a job with such a process is `unread` until its thread comes back. What is
known of a job is touched by one thread at a time: no other reads it while one hangs there.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lattice.base.impatience import ImpatientReader
from lattice.base.impatience_threads import Progress, Stuck
from lattice.domain.counters import (
    IO,
    NETWORK,
    NamespaceCounters,
    Rows,
    network_row,
)
from lattice.domain.kerneltext import InterfaceCounts, figure
from lattice.domain.nodejobs import UNREADABLE
from lattice.helper.figures import io_counters, parent_and_start, sum_of_devices
from lattice.helper.jobpids import JobPids
from lattice.helper.privilege import Kernel
from lattice.helper.process import is_of_job, text_of

_LARGEST_IO = 512
_PASSES = 3
_LARGEST_DEV = 64 * 1024
_MOST_KEPT = 16_384
_FORGET_S = 300.0
_PATIENCE_S, _WITHIN_S = 0.6, 1.0
"""The agent waits for 1.5 s, and shall hear of the other jobs."""
_MOST_STUCK = 256
_NAMESPACE_S = 30.0
"""How long a process is believed to stay in the network it was seen in."""


@dataclass(slots=True)
class _Known:
    pid: int
    started: int
    parent: int
    own: bool
    file: int
    """Of its `io`; -1: it could not be opened, or too many are."""
    gone: bool = False
    namespace: int = 0
    looked_s: float = -_NAMESPACE_S


@dataclass(slots=True)
class _Job:
    asked_s: float
    known: dict[int, _Known]


@dataclass(slots=True)
class _Found:
    """What was read of one job; None: not wanted."""

    io: Rows | None = None
    network: Rows | None = None


class JobCounters:
    """Answers `io` and `network` of a conversation; remembers processes between questions."""

    kinds = frozenset({IO, NETWORK})

    def __init__(
        self,
        pids: JobPids,
        kernel: Kernel,
        proc: Path = Path("/proc"),
        *,
        monotonic: Callable[[], float] = time.monotonic,
        most_kept: int | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`patience_s`: how long one process may hold whoever reads it."""
        self._pids = pids
        self._kernel = kernel
        self._proc = str(proc)
        self._monotonic = monotonic
        # Half of what may be open at all: the other half is for looking.
        half = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._most_kept = min(half, _MOST_KEPT) if most_kept is None else most_kept
        self._kept = 0
        self._counting = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._uid = os.geteuid()
        # One thread a job: while one process can't be read there is no sum.
        self._impatient: ImpatientReader[int] = ImpatientReader(
            "counters", patience_s=patience_s, within_s=_WITHIN_S, most_a_key=1, most=_MOST_STUCK
        )
        self.unread: dict[int, str] = {}
        """Of the last question: the jobs that could not be read, and why."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """By kind and job; jobs without a process are left out."""

        def read(job_id: int, progress: Progress) -> _Found:
            return self._read_job(job_id, wanted, progress)

        told: dict[str, dict[int, Rows]] = {kind: {} for kind in wanted}
        self.unread = {}
        for job_id, found in self._impatient.read_each(jobs, read).items():
            if isinstance(found, Stuck):
                self.unread[job_id] = UNREADABLE
                continue
            for kind, rows in ((IO, found.io), (NETWORK, found.network)):
                if rows is not None:
                    told[kind][job_id] = rows
        self._forget_unasked()
        return told

    def close(self) -> None:
        """Let go of what is open, but for jobs in which a thread hangs: it may come back."""
        self._impatient.close()
        for job_id in [each for each in self._jobs if not self._impatient.hangs_for(each)]:
            for known in self._jobs.pop(job_id).known.values():
                self._let_go(known)

    def _read_job(self, job_id: int, wanted: Collection[str], progress: Progress) -> _Found:
        known = self._look(job_id, progress)
        found = _Found()
        if known and IO in wanted:
            found.io = self._read_all(known, progress)
        if known and NETWORK in wanted:
            found.network = [network_row(each) for each in self._networks(known, progress)]
        return found

    # Which processes there are.

    def _look(self, job_id: int, progress: Progress) -> list[_Known]:
        """Everyone of the job, parents before children."""
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
            stat = parent_and_start(text_of(folder, "stat"))
            if stat is None:
                return None
            file = self._opened(folder) if self._kept < self._most_kept else -1
            known = _Known(pid, stat[1], stat[0], own, file)
            self._count_kept(file >= 0)
            if not is_of_job(text_of(folder, "cgroup"), job_id):
                self._let_go(known)
                return None
            return known
        finally:
            os.close(folder)

    def _lingers(self, known: _Known, job_id: int) -> bool:
        """Whether it is still there: ended, not reaped, and listed nowhere."""
        with suppress(ProcessLookupError), self._same(known) as folder:
            return is_of_job(text_of(folder, "cgroup"), job_id)
        return False

    def _new_parent(self, each: _Known, known: Mapping[int, _Known]) -> int:
        """Who has it now that its parent is gone; 0 for nobody of this job."""
        with suppress(ProcessLookupError), self._same(each) as folder:
            stat = parent_and_start(text_of(folder, "stat"))
            return stat[0] if stat and stat[0] in known else 0
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
            self._count_kept(-1)
            known.file = -1

    def _count_kept(self, more: int) -> None:
        with self._counting:  # a thread that comes back counts, too
            self._kept += more

    # What they did.

    def _read_all(self, known: Sequence[_Known], progress: Progress) -> Rows:
        rows: Rows = []
        for _ in range(_PASSES):
            there = [each for each in known if not each.gone]
            rows = [row for each in there if (row := self._row(each, progress))]
            if len(rows) == len(there):
                break
        return rows

    def _row(self, each: _Known, progress: Progress) -> list[int]:
        """Nothing if it is gone meanwhile; another may have its number by now."""
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
        """Where no descriptor is kept."""
        with self._same(each) as folder:
            file = self._opened(folder)
            if file < 0:
                return b""
            try:
                return os.read(file, _LARGEST_IO)
            finally:
                os.close(file)

    def _opened(self, folder: int) -> int:
        """Its `io`, by the file rights of whoever owns it."""
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

    def _networks(self, known: Sequence[_Known], progress: Progress) -> list[NamespaceCounters]:
        """Each that the owner's processes are in; the node's own as 0, without figures."""
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

    def _dev(self, each: _Known, progress: Progress) -> InterfaceCounts | None:
        progress.reads(each.pid)
        with suppress(ProcessLookupError), self._same(each) as folder:
            text = text_of(folder, "net/dev", _LARGEST_DEV)
            # Of a part of the interfaces no sum is true.
            return sum_of_devices(text) if len(text) < _LARGEST_DEV else None
        return None

    @contextmanager
    def _same(self, each: _Known) -> Iterator[int]:
        """A descriptor of the folder of that very process. Raises `ProcessLookupError`."""
        folder = self._folder(each.pid)
        if folder < 0:
            raise ProcessLookupError
        try:
            stat = parent_and_start(text_of(folder, "stat"))
            if stat is None or stat[1] != each.started:
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
        told = os.readlink(link, dir_fd=folder)
    except OSError:
        return 0
    return figure(told.removeprefix("net:[").removesuffix("]")) or 0
