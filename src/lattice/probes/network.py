"""Network traffic: of the job if it has its own network, else of the node.

The kernel counts for interfaces, and interfaces belong to network namespaces. The root helper
reports the namespaces of the owner's processes. If none of them is the node's, their counts are the
job's, and `scope` is `job`. Otherwise the values are the whole node's, and `scope` is `node`.

Of the node's interfaces only those with a device count. Bridges, bonds and virtual pairs would
count the same packets again. If none has a device (the node is itself a namespace), all except the
loopback count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lattice.base.clock import Clock
from lattice.domain.counters import (
    NETWORK,
    BadTelling,
    CountersUnavailable,
    NamespaceCounters,
    Table,
    namespaces_of,
)
from lattice.domain.kerneltext import LOOPBACK, InterfaceCounts, read_devices
from lattice.domain.metric import Absence, MetricReading, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob
from lattice.probes.helper_cache import HelperReadings, newest_attempts
from lattice.probes.kernel_files import Carried, OfJobs, read_text, reading
from lattice.probes.probe import ProbeRoots, ProbeSite

_METRICS = (
    "network_rx_bytes_total",
    "network_tx_bytes_total",
    "network_packets_total",
    "network_errors_total",
)
"""In the order of `InterfaceCounts`."""


@dataclass(slots=True)
class _Totals:
    """A total for each metric that never falls, though interfaces and networks come and go."""

    parts: tuple[Carried, ...] = field(default_factory=lambda: tuple(Carried() for _ in _METRICS))

    def of(self, counted: Mapping[str, InterfaceCounts]) -> list[int]:
        return [
            part.total({name: figures[at] for name, figures in counted.items()})
            for at, part in enumerate(self.parts)
        ]


class NetworkProbe:
    """Reads the node's interfaces, and those of jobs by the helper."""

    name = "network"
    metrics = frozenset(_METRICS)
    own_thread = False

    def __init__(self, roots: ProbeRoots, helper: HelperReadings, clock: Clock) -> None:
        self._dev = str(roots.proc / "net/dev")
        self._interfaces = str(roots.sys / "class/net")
        self._helper = helper
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._real: frozenset[str] = frozenset()
        self._node = _Totals()
        self._jobs: OfJobs[_Totals] = OfJobs(_Totals)

    @classmethod
    def on(cls, site: ProbeSite) -> NetworkProbe:
        return cls(site.roots, site.helper, site.clock)

    def read(self, jobs: Sequence[NodeJob]) -> Mapping[JobIdentity, Sequence[MetricReading]]:
        table, unread = self._asked(jobs)
        newest = newest_attempts(jobs)
        of_node: list[MetricReading] | None = None
        found: dict[JobIdentity, Sequence[MetricReading]] = {}
        for job in jobs:
            if job.id in unread:
                found[job.identity] = _absent(unread[job.id])
                continue
            own = _own(table.get(job.id, []) if job.identity in newest else [])
            if own is not None:
                found[job.identity] = self._of_job(job, own)
            else:
                of_node = self._of_node() if of_node is None else of_node
                found[job.identity] = of_node
        return found

    def _asked(self, jobs: Sequence[NodeJob]) -> tuple[Table, Mapping[int, str]]:
        """The helper's rows, and the jobs that could not be read.

        Without the helper every value is the node's, with `scope` set to `node`.
        """
        try:
            answer = self._helper.at(jobs)
            return answer.of(NETWORK), answer.unread
        except CountersUnavailable:
            return {}, {}

    def _of_job(self, job: NodeJob, own: Sequence[NamespaceCounters]) -> list[MetricReading]:
        counted = {str(each.inode): each.counted for each in own if each.counted is not None}
        if len(counted) != len(own):
            return _absent("the network of the job could not be read")
        return self._readings(self._jobs[job.identity].of(counted), "job")

    def _of_node(self) -> list[MetricReading]:
        devices = read_devices(read_text(self._dev))
        if devices is None:
            return _absent("the kernel does not tell it")
        counting = self._counting(frozenset(devices))
        if not counting:
            return _absent("the node has no network")
        return self._readings(self._node.of({name: devices[name] for name in counting}), "node")

    def _readings(self, totals: Sequence[int], scope: str) -> list[MetricReading]:
        now = self._clock.now().timestamp()
        labels = labelled(scope=scope)
        return [
            reading(metric, total, now, labels)
            for metric, total in zip(_METRICS, totals, strict=True)
        ]

    def _counting(self, names: frozenset[str]) -> frozenset[str]:
        """The interfaces that count; determined again when the set of interfaces changes."""
        if names != self._names:
            outside = names - {LOOPBACK}
            real = {name for name in outside if self._has_device(name)}
            self._names, self._real = names, frozenset(real or outside)
        return self._real

    def _has_device(self, name: str) -> bool:
        return os.path.lexists(f"{self._interfaces}/{name}/device")


def _absent(reason: str) -> list[MetricReading]:
    return [Absence(metric, reason) for metric in _METRICS]


def _own(rows: list[object]) -> list[NamespaceCounters] | None:
    """The networks of a job that has only its own networks; else None."""
    try:
        found = namespaces_of(rows)
    except BadTelling:
        return None
    return found if found and all(each.inode for each in found) else None
