"""How long a job's file reads and writes take, and its TCP retransmits, by eBPF.

The kernel counts and lattice-helper reads the counts. This probe turns them into the buckets of a
Prometheus histogram. Each counts the calls that took at most `le` seconds; the last counts all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.base.clock import Clock
from lattice.domain.counters import LATENCY, CountersUnavailable
from lattice.domain.latency import JobTiming, cumulative, timings_of
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.domain.nodejobs import NodeJob
from lattice.probes.helper_cache import HelperReadings
from lattice.probes.kernel_files import OfJobs, is_young, reading
from lattice.probes.probe import Found, ProbeFailed, ProbeSite

IO_LATENCY = "io_latency_seconds_bucket"
RETRANSMITS = "tcp_retransmits_total"
NO_ROOM = "more jobs on this node than the kernel was given room to count"
NOT_FOUND = "lattice-helper finds no control group of this job"
NOT_YET = "the job has just begun; it is not counted yet"
_LOST_SHARE = 0.01
"""The fraction of calls that may be missing; above it a percentile would be a guess."""


@dataclass(slots=True)
class _Before:
    """The previous values."""

    counted: int | None = None
    lost: int = 0


class LatencyProbe:
    """Uses the helper's answer about all jobs."""

    name = "latency"
    metrics = frozenset({IO_LATENCY, RETRANSMITS})
    own_thread = False

    def __init__(self, helper: HelperReadings, clock: Clock) -> None:
        self._helper = helper
        self._clock = clock
        self._before = OfJobs(_Before)

    @classmethod
    def on(cls, site: ProbeSite) -> LatencyProbe:
        return cls(site.helper, site.clock)

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        try:
            table = self._helper.at(jobs).of(LATENCY)
        except CountersUnavailable as error:
            raise ProbeFailed(error.reason, error.last_error) from error
        now = self._clock.now().timestamp()
        return {job.identity: self._of_job(job, table.get(job.id, []), now) for job in jobs}

    def _of_job(self, job: NodeJob, rows: Sequence[object], now: float) -> list[MetricReading]:
        try:
            timings = timings_of(rows)
            if None in timings:
                return _absent(NO_ROOM)
            for each in timings:
                # Another inode is another attempt of the job, which started since the node was
                # read.
                if each is not None and each.inode == job.identity.inode:
                    return [*self._buckets(job, each, now), _retransmits(each, now)]
        except ValueError as error:
            return _absent("lattice-helper told what can't be", str(error))
        return _absent(NOT_YET if is_young(job.identity, now) else NOT_FOUND)

    def _buckets(self, job: NodeJob, timing: JobTiming, now: float) -> list[MetricReading]:
        buckets = cumulative(timing.slots)
        counted = buckets[-1][1]
        before = self._before[job.identity]
        lost = 0 if before.counted is None else timing.lost - before.lost
        new = counted - (before.counted or 0)
        before.counted, before.lost = counted, timing.lost
        if lost > _LOST_SHARE * (max(new, 0) + lost):
            return [Absence(IO_LATENCY, f"the kernel could not time {lost} calls on this node")]
        return [reading(IO_LATENCY, count, now, labelled(le=edge)) for edge, count in buckets]


def _retransmits(timing: JobTiming, now: float) -> MetricReading:
    scope = "node" if timing.of_node else "job"
    return reading(RETRANSMITS, timing.retransmits, now, labelled(scope=scope))


def _absent(reason: str, last_error: str = "") -> list[MetricReading]:
    return [Absence(metric, reason, last_error) for metric in (IO_LATENCY, RETRANSMITS)]
