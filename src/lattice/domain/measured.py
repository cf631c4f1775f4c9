"""What one node measured for one job at one time, and what people are shown of it. Pure.

Agents measure counters and gauges (`lattice.domain.metric`); people are shown rates and shares. A
rate needs two snapshots of the same life of a job. If one is missing, or a counter was reset
between them, there is a reason instead of a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.metric import (
    Absence,
    Labels,
    MetricReading,
    NotMeasured,
    Provenance,
    Sample,
)
from lattice.domain.nodejobs import JobIdentity

NOT_MEASURED = "not measured on this node"
FIRST_READING = "a rate needs two looks; the second is under way"
NOTHING_DONE = "nothing was read or written in this time"
NOTHING_YET = "the job has read and written no file yet"
_LATENCY = "io_latency_seconds_bucket"


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All readings of a job on a node, at a time that the nodes share."""

    identity: JobIdentity
    time: float
    """The aligned time, in seconds since 1970; each sample has its own."""
    resolution_s: float
    readings: tuple[MetricReading, ...]
    _by_metric: Mapping[str, tuple[Sample, ...]] = field(init=False, repr=False, compare=False)
    """Grouped once, because every rule reads every snapshot."""

    def __post_init__(self) -> None:
        by_metric: dict[str, list[Sample]] = {}
        sources = set()
        for each in self.readings:
            if isinstance(each, Sample):
                by_metric.setdefault(each.metric, []).append(each)
                sources.add(each.source)
        if Provenance.SLICE_GUEST in sources and len(sources) > 1:
            raise NotMeasured("values of a slice's guest and of its host for one job")
        whole = {metric: tuple(samples) for metric, samples in by_metric.items()}
        object.__setattr__(self, "_by_metric", whole)

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(each for each in self.readings if isinstance(each, Sample))

    def of(self, metric: str) -> tuple[Sample, ...]:
        return self._by_metric.get(metric, ())

    def absence(self, metric: str) -> Absence | None:
        found = (
            each for each in self.readings if isinstance(each, Absence) and each.metric == metric
        )
        return next(found, None)


class Shown(StrEnum):
    """The metrics that people use by name (TOP-1), alike in tables, JSON and `--metrics`."""

    GPU_UTILIZATION = "gpu_utilization"
    GPU_MEMORY_USED = "gpu_memory_used"
    GPU_POWER_DRAW = "gpu_power_draw"
    CPU_UTILIZATION = "cpu_utilization"
    """100 is one core."""
    MEMORY_USED = "memory_used"
    NETWORK_TX_BYTES = "network_tx_bytes"
    NETWORK_RX_BYTES = "network_rx_bytes"
    IO_READ_BYTES = "io_read_bytes"
    IO_WRITE_BYTES = "io_write_bytes"
    IO_LATENCY_P99 = "io_latency_p99"
    GPU_TEMPERATURE = "gpu_temperature"
    GPU_SM_OCCUPANCY = "gpu_sm_occupancy"
    MEMORY_CACHE = "memory_cache"
    MEMORY_LIMIT = "memory_limit"
    OOM_KILLS = "oom_kills"


class Making(StrEnum):
    """How the shown value is made from the series."""

    LAST = "last"
    RATE = "rate"
    P99 = "p99"


class Summing(StrEnum):
    """How values of nodes or GPUs are combined."""

    MEAN = "mean"
    TOTAL = "total"
    WORST = "worst"


@dataclass(frozen=True, slots=True)
class Showing:
    """One shown metric: its series, its unit, and how it is made and combined."""

    series: str
    unit: str
    making: Making
    summing: Summing
    factor: float = 1.0
    per_gpu: bool = False


_L, _R, _P = Making.LAST, Making.RATE, Making.P99
_M, _T, _W = Summing.MEAN, Summing.TOTAL, Summing.WORST
SHOWN: Mapping[Shown, Showing] = {
    Shown.GPU_UTILIZATION: Showing("gpu_utilization_percent", "%", _L, _M, per_gpu=True),
    Shown.GPU_MEMORY_USED: Showing("gpu_memory_used_bytes", "bytes", _L, _T, per_gpu=True),
    Shown.GPU_POWER_DRAW: Showing("gpu_power_watts", "W", _L, _T, per_gpu=True),
    Shown.CPU_UTILIZATION: Showing("cpu_seconds_total", "%", _R, _T, 100.0),
    Shown.MEMORY_USED: Showing("memory_used_bytes", "bytes", _L, _T),
    Shown.NETWORK_TX_BYTES: Showing("network_tx_bytes_total", "bytes/s", _R, _T),
    Shown.NETWORK_RX_BYTES: Showing("network_rx_bytes_total", "bytes/s", _R, _T),
    Shown.IO_READ_BYTES: Showing("io_read_bytes_total", "bytes/s", _R, _T),
    Shown.IO_WRITE_BYTES: Showing("io_write_bytes_total", "bytes/s", _R, _T),
    Shown.IO_LATENCY_P99: Showing(_LATENCY, "µs", _P, _W, 1e6),
    Shown.GPU_TEMPERATURE: Showing("gpu_temperature_celsius", "°C", _L, _W, per_gpu=True),
    Shown.GPU_SM_OCCUPANCY: Showing("gpu_sm_occupancy_percent", "%", _L, _M, per_gpu=True),
    Shown.MEMORY_CACHE: Showing("memory_cache_bytes", "bytes", _L, _T),
    Shown.MEMORY_LIMIT: Showing("memory_limit_bytes", "bytes", _L, _T),
    Shown.OOM_KILLS: Showing("memory_oom_kills_total", "", _L, _T),
}


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A number that a person sees, with its source and its time."""

    value: float
    time: float
    source: Provenance
    labels: Labels = ()
    """`gpu_uuid`, and `scope` if a value is the whole node's."""


ShownReading: TypeAlias = ShownValue | Absence


def shown_of(
    metric: Shown, before: JobSnapshot | None, now: JobSnapshot
) -> tuple[ShownReading, ...]:
    """One reading per series, for example per GPU; an `Absence` if there is none."""
    showing = SHOWN[metric]
    samples = now.of(showing.series)
    if not samples:
        absence = now.absence(showing.series)
        return (absence or Absence(showing.series, NOT_MEASURED),)
    if showing.making is Making.LAST:
        return tuple(
            ShownValue(each.value * showing.factor, each.time, each.source, each.labels)
            for each in samples
        )
    if before is None or before.identity != now.identity:
        return (Absence(showing.series, FIRST_READING),)
    if showing.making is Making.P99:
        return (_p99(showing, before, now),)
    return tuple(_rate(showing, _same(before.of(showing.series), each), each) for each in samples)


def _same(samples: Iterable[Sample], as_: Sample) -> Sample | None:
    found = (each for each in samples if each.labels == as_.labels and each.source is as_.source)
    return next(found, None)


def _rate(showing: Showing, before: Sample | None, now: Sample) -> ShownReading:
    if before is None:
        return Absence(showing.series, FIRST_READING, labels=now.labels)
    passed_s, grown = now.time - before.time, now.value - before.value
    if passed_s <= 0 or grown < 0:
        return Absence(showing.series, "its counter began anew", labels=now.labels)
    return ShownValue(grown / passed_s * showing.factor, now.time, now.source, now.labels)


def _p99(showing: Showing, before: JobSnapshot, now: JobSnapshot) -> ShownReading:
    """The upper edge of the bucket that contains the 99th percentile."""
    buckets = []
    then = {each.labels: each.value for each in before.of(showing.series)}
    for each in now.of(showing.series):
        grown = each.value - then.get(each.labels, 0.0)
        if grown < 0:
            return Absence(showing.series, "its counter began anew")
        buckets.append((float(each.label("le")), grown, each))
    buckets.sort(key=lambda each: each[0])
    counted = buckets[-1][1]
    if counted <= 0:
        began = buckets[-1][2].value > 0
        return Absence(showing.series, NOTHING_DONE if began else NOTHING_YET)
    for edge, grown, sample in buckets:
        if grown >= 0.99 * counted and math.isfinite(edge):
            return ShownValue(edge * showing.factor, sample.time, sample.source)
    return Absence(showing.series, "longer than the longest time that is told apart")


def summed(metric: Shown, values: Iterable[float]) -> float | None:
    """One value for all; None for none."""
    numbers = list(values)
    if not numbers:
        return None
    if SHOWN[metric].summing is Summing.TOTAL:
        return math.fsum(numbers)
    return (
        max(numbers)
        if SHOWN[metric].summing is Summing.WORST
        else math.fsum(numbers) / len(numbers)
    )
