"""A job's processes: their number, their threads, and their storage reads and writes.

Every user can read the numbers from the control groups. Only its owner can read the I/O counters of
a process, so these come through the root helper. `ioledger` defines the total over processes that
come and go. While one process can't be read there is no total: the sum would be too low by an
unknown amount.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lattice.base.clock import Clock
from lattice.domain.counters import (
    IO,
    BadTelling,
    CountersUnavailable,
    ProcessCounters,
    Table,
    processes_of,
)
from lattice.domain.kerneltext import figure
from lattice.domain.metric import Absence, MetricReading
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.helper_cache import HelperReadings, newest_attempts
from lattice.probes.ioledger import IoLedger
from lattice.probes.kernel_files import OfJobs, folders_in, is_young, read_text, reading
from lattice.probes.probe import ProbeFailed, ProbeSite

_READ, _WRITTEN = "io_read_bytes_total", "io_write_bytes_total"
_DEEPEST = 8
_LARGEST_LIST = 4 * 1024 * 1024
_STEP = "step_"
_DAEMONS = "slurm"
NO_GROUP = "the job has no control group here"
NO_PROCESS = "lattice-helper found no process of the job"
NO_PROCESS_YET = "the job has just begun; no process of it was found yet"
UNREAD = "the kernel does not tell what its processes read and wrote"
SOME_UNREAD = "not all of the job's processes could be read; a sum without them is too low"
OLDER_ATTEMPT = "a newer life of this job is on the node"


class ProcessesProbe:
    """Counts in control groups, and reads I/O counters from the helper."""

    name = "processes"
    metrics = frozenset({"processes", "threads", _READ, _WRITTEN})
    own_thread = False

    def __init__(self, helper: HelperReadings, clock: Clock) -> None:
        self._helper = helper
        self._clock = clock
        self._ledgers: OfJobs[IoLedger] = OfJobs(IoLedger)

    @classmethod
    def on(cls, site: ProbeSite) -> ProcessesProbe:
        return cls(site.helper, site.clock)

    def read(self, jobs: Sequence[NodeJob]) -> Mapping[JobIdentity, Sequence[MetricReading]]:
        answer = self._asked(jobs)
        newest = newest_attempts(jobs)
        return {job.identity: [*self._counts(job), *self._io(job, answer, newest)] for job in jobs}

    def _asked(self, jobs: Sequence[NodeJob]) -> tuple[Table, Mapping[int, str]] | ProbeFailed:
        """The helper's rows, and the jobs that could not be read."""
        try:
            answer = self._helper.at(jobs)
            return answer.of(IO), answer.unread
        except CountersUnavailable as error:
            return ProbeFailed(error.reason, error.last_error)

    def _counts(self, job: NodeJob) -> list[MetricReading]:
        now = self._clock.now().timestamp()
        folder = job.folders[0] if job.folders else None
        if folder is None:
            return [Absence("processes", NO_GROUP), Absence("threads", NO_GROUP)]
        threads_file = "tasks" if folder.hierarchy else "cgroup.threads"
        folders = list(_step_folders(folder.path, v2=not folder.hierarchy))
        return [
            _summed("processes", [f"{each}/cgroup.procs" for each in folders], now),
            _summed("threads", [f"{each}/{threads_file}" for each in folders], now),
        ]

    def _io(
        self,
        job: NodeJob,
        answer: tuple[Table, Mapping[int, str]] | ProbeFailed,
        newest: frozenset[JobIdentity],
    ) -> list[MetricReading]:
        if isinstance(answer, ProbeFailed):
            return _absent(answer.reason, answer.last_error)
        if job.identity not in newest:
            return _absent(OLDER_ATTEMPT)
        table, unread = answer
        if job.id in unread:
            return _absent(unread[job.id])
        try:
            processes = processes_of(table.get(job.id, []))
        except BadTelling as error:
            return _absent("lattice-helper said what can't be", str(error))
        return self._summed_io(job, processes)

    def _summed_io(self, job: NodeJob, processes: Sequence[ProcessCounters]) -> list[MetricReading]:
        now = self._clock.now().timestamp()
        ledger = self._ledgers[job.identity]
        # Without processes the total stays. With none readable it would be outdated.
        unread = sum(each.counted is None for each in processes)
        if processes and unread == len(processes):
            return _absent(UNREAD)
        if not processes and not ledger.known:
            return _absent(NO_PROCESS_YET if is_young(job.identity, now) else NO_PROCESS)
        # Also if no total is reported: the ledger must notice processes that end.
        total = ledger.update(processes)
        if unread:
            return _absent(SOME_UNREAD, f"{unread} of {len(processes)} processes")
        return [reading(_READ, total.read_bytes, now), reading(_WRITTEN, total.write_bytes, now)]


def _absent(reason: str, last_error: str = "") -> list[MetricReading]:
    return [Absence(metric, reason, last_error) for metric in (_READ, _WRITTEN)]


def _summed(metric: str, lists: Sequence[str], now: float) -> MetricReading:
    """How many numbers are in these files; skips files that are gone."""
    count, read = 0, False
    for file in lists:
        text = read_text(file, _LARGEST_LIST)
        if text is None:
            continue
        read = True
        numbers = text.split()
        if any(figure(each) is None for each in numbers):
            return Absence(metric, "the kernel told what can't be")
        count += len(numbers)
    return reading(metric, count, now) if read else Absence(metric, NO_GROUP)


def _step_folders(folder: str, *, v2: bool) -> Iterator[str]:
    """The steps and the folders below them, without Slurm's own daemons."""
    for name in folders_in(folder):
        if name.startswith(_STEP):
            step = f"{folder}/{name}"
            yield step
            for inner in folders_in(step):
                if not (v2 and inner == _DAEMONS):
                    yield from _below(f"{step}/{inner}", 1)


def _below(folder: str, depth: int) -> Iterator[str]:
    yield folder
    if depth < _DEEPEST:
        for name in folders_in(folder):
            yield from _below(f"{folder}/{name}", depth + 1)
