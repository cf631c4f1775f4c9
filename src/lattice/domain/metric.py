"""The catalogue of metrics, and the one type for a measured number. Pure.

A `Sample` must have a source and a time. It can't hold an invalid number: NaN, a vendor's blank, a
value outside the metric's bounds. What could not be measured is an `Absence` with the reason.
Probes return nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import TypeAlias

PREFIX = "lattice_"
"""The prefix of every name in the metric store."""
Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted pairs that distinguish the series of one metric. The server adds the owner's labels."""

_ZETTABYTE, _EXABYTE, _PETABYTE = 1e21, 1e18, 1e15
"""A GPU's memory is below the last, and a vendor's blank (1.4e16) is above it."""
_LONGEST_LABEL = 128
_EARLIEST, _LATEST = 1e9, 1e11


class Provenance(StrEnum):
    """What measured the value."""

    HOST_LOCAL_PROBE = "host_local_probe"
    SLICE_GUEST = "slice_guest"
    IN_JOB_PROBE = "in_job_probe"
    SITE_EXPORTER = "site_exporter"
    SLURM_ACCOUNTING = "slurm_accounting"
    UNAVAILABLE = "unavailable"


class MetricKind(StrEnum):
    """How values of one series relate."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Never falls while its job lives, unless the counting program restarts."""


class Per(StrEnum):
    """What one series is about, besides its job and node."""

    JOB = "job"
    GPU = "gpu"
    """Has the label `gpu_uuid`."""


class NotMeasured(ValueError):
    """A number that can't be a measurement of this metric; the text gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One line of the catalogue."""

    name: str
    kind: MetricKind
    per: Per
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    """Names of the labels that its series have besides `gpu_uuid`."""
    most: float
    """The upper bound of valid values."""

    @property
    def series(self) -> str:
        return PREFIX + self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        return (*(("gpu_uuid",) if self.per is Per.GPU else ()), *self.labels)


def _metric(
    per: Per, name: str, kind: MetricKind, unit: str, description: str, *labels: str, most: float
) -> Metric:
    return Metric(
        name=name, kind=kind, per=per, unit=unit, description=description, labels=labels, most=most
    )


_job = partial(_metric, Per.JOB, most=_EXABYTE)
_gpu = partial(_metric, Per.GPU, most=_PETABYTE)
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _job("cpu_seconds_total", _COUNTER, "s", "processor time used, user and system"),
        _job("cpu_cores", _GAUGE, "cores", "processor cores the job may use on the node", most=1e6),
        _job("memory_used_bytes", _GAUGE, "bytes", "resident and shared memory"),
        _job("memory_cache_bytes", _GAUGE, "bytes", "page cache that can be given back"),
        _job("memory_limit_bytes", _GAUGE, "bytes", "memory beyond which the job is killed"),
        _job("memory_oom_kills_total", _COUNTER, "", "processes killed for want of memory"),
        _job("processes", _GAUGE, "", "processes of the job", most=1e8),
        _job("threads", _GAUGE, "", "threads of the job", most=1e8),
        _job("io_read_bytes_total", _COUNTER, "bytes", "read from storage"),
        _job("io_write_bytes_total", _COUNTER, "bytes", "written to storage"),
        _job("network_tx_bytes_total", _COUNTER, "bytes", "sent over the network", "scope"),
        _job("network_rx_bytes_total", _COUNTER, "bytes", "received over the network", "scope"),
        _job("network_packets_total", _COUNTER, "", "network packets, both ways", "scope"),
        _job(
            "network_errors_total",
            _COUNTER,
            "",
            "network packets lost to errors, both ways",
            "scope",
        ),
        _job(
            "pressure_seconds_total",
            _COUNTER,
            "s",
            "time stalled for want of a resource",
            "resource",
            "share",
        ),
        _job(
            "io_latency_seconds_bucket",
            _COUNTER,
            "",
            "reads and writes that took at most `le`",
            "le",
        ),
        _job("tcp_retransmits_total", _COUNTER, "", "TCP segments sent again", "scope"),
        _gpu(
            "gpu_utilization_percent",
            _GAUGE,
            "%",
            "share of time with a kernel running on the GPU",
            most=100,
        ),
        _gpu(
            "gpu_sm_occupancy_percent",
            _GAUGE,
            "%",
            "warps resident on the GPU, of those possible",
            most=100,
        ),
        _gpu("gpu_memory_used_bytes", _GAUGE, "bytes", "memory in use on the GPU"),
        _gpu("gpu_memory_total_bytes", _GAUGE, "bytes", "memory of the GPU"),
        _gpu("gpu_power_watts", _GAUGE, "W", "power that the GPU draws", most=1e5),
        _gpu("gpu_power_limit_watts", _GAUGE, "W", "power that the GPU may draw", most=1e5),
        _gpu(
            "gpu_energy_joules_total",
            _COUNTER,
            "J",
            "energy that the GPU drew since its driver was loaded",
        ),
        _gpu("gpu_temperature_celsius", _GAUGE, "°C", "temperature of the GPU", most=300),
        _gpu("gpu_clock_sm_hertz", _GAUGE, "Hz", "clock of the GPU's processors", most=1e11),
        _gpu("gpu_clock_memory_hertz", _GAUGE, "Hz", "clock of the GPU's memory", most=1e11),
        _gpu(
            "gpu_throttled",
            _GAUGE,
            "",
            "1 while the card is slowed down for `reason`",
            "reason",
            most=1,
        ),
        _gpu(
            "gpu_ecc_corrected_total",
            _COUNTER,
            "",
            "GPU memory errors corrected since the driver was loaded",
        ),
        _gpu(
            "gpu_ecc_uncorrected_total",
            _COUNTER,
            "",
            "GPU memory errors not corrected since the driver was loaded",
        ),
        _gpu("gpu_pcie_tx_bytes_per_second", _GAUGE, "bytes/s", "sent over PCIe"),
        _gpu("gpu_pcie_rx_bytes_per_second", _GAUGE, "bytes/s", "received over PCIe"),
        _gpu(
            "gpu_nvlink_bytes_total",
            _COUNTER,
            "bytes",
            "moved over NVLink, both ways",
            # One GPU moves a petabyte in twenty minutes.
            most=_ZETTABYTE,
        ),
        _gpu(
            "gpu_xgmi_bytes_total",
            _COUNTER,
            "bytes",
            "moved over XGMI, both ways",
            most=_ZETTABYTE,
        ),
        _gpu(
            "gpu_link_errors_total",
            _COUNTER,
            "",
            "errors on the GPU's `link`, by `kind`; most were put right by sending again",
            "link",
            "kind",
        ),
        _gpu(
            "gpu_xid_total", _COUNTER, "", "errors that the GPU's driver reported, by `xid`", "xid"
        ),
    )
}
"""Every series that an agent may send. Other names are refused."""


_KNOWN = {
    name: (metric.most, tuple(sorted(metric.label_names))) for name, metric in CATALOGUE.items()
}


@lru_cache(maxsize=4096)
def _label_fault(names: tuple[str, ...], labels: Labels) -> str:
    if tuple(name for name, _ in labels) != names:
        return f"not the labels {', '.join(names)}"
    values = (value for _, value in labels)
    fine = all(0 < len(each) <= _LONGEST_LABEL and each.isprintable() for each in values)
    return "" if fine else "a label that can't be one"


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured number. Raises `NotMeasured` if it can't be one."""

    metric: str
    value: float
    time: float
    """When it was read, in seconds since 1970 by the node's clock."""
    source: Provenance = Provenance.HOST_LOCAL_PROBE
    labels: Labels = ()

    def __post_init__(self) -> None:
        known = _KNOWN.get(self.metric)
        if known is None:
            raise NotMeasured(f"{self.metric!r} is not in the catalogue")
        most, names = known
        if self.source is Provenance.UNAVAILABLE:
            raise NotMeasured("what is unavailable has no number")
        if isinstance(self.value, bool) or not math.isfinite(self.value):
            raise NotMeasured("not a number")
        if not 0 <= self.value <= most:
            raise NotMeasured(f"{self.value:g} is out of bounds")
        if not _EARLIEST < self.time < _LATEST:
            raise NotMeasured("no moment at which anything was measured")
        if (names or self.labels) and (fault := _label_fault(names, self.labels)):
            raise NotMeasured(fault)

    def label(self, name: str) -> str:
        """The value of a label; empty if it has no such label."""
        for each, value in self.labels:
            if each == name:
                return value
        return ""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is no number, for a metric or for one of its series."""

    metric: str
    reason: str
    last_error: str = ""
    """The text of the failed part."""
    labels: Labels = ()


MetricReading: TypeAlias = Sample | Absence


def labelled(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))
