"""The stored summary of one ended attempt: requests, use, and coarse series. Pure.

It is one JSON document per attempt, written once and kept for years. So runs can be reported and
compared long after the metric store has dropped them. Fields are only ever added. A reader ignores
unknown fields of a later format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from lattice.domain.allocation import Allocation, Attempt
from lattice.domain.attempts import JobAttempt
from lattice.domain.measured import SHOWN, Shown
from lattice.domain.objects import key_of
from lattice.domain.telemetry import MetricOrigin

FORMAT = 1
MOST_POINTS = 200
"""Of one series."""
_NO_TENANT = "-"


class BadSummary(ValueError):
    """Bytes that are no summary; the text gives the reason."""


class Use(StrEnum):
    CPU_SECONDS = "cpu_seconds"
    CPU_EFFICIENCY = "cpu_efficiency"
    """Of the processors it had, in percent."""
    CPU_PEAK_CORES = "cpu_peak_cores"
    """In its busiest interval."""
    MEMORY_PEAK = "memory_peak"
    """Of the node with the highest."""
    GPU_UTILIZATION = "gpu_utilization"
    """The mean over GPUs and time."""
    GPU_MEMORY_PEAK = "gpu_memory_peak"
    """Of the GPU with the highest."""
    GPU_ENERGY = "gpu_energy"
    NODE_ENERGY = "node_energy"
    """Of its whole nodes, if Slurm itself measures it."""
    IO_READ = "io_read"
    IO_WRITTEN = "io_written"
    NETWORK_SENT = "network_sent"
    NETWORK_RECEIVED = "network_received"
    OOM_KILLS = "oom_kills"


class Waste(StrEnum):
    """What a run had and did not use."""

    CPU_CORE_HOURS = "cpu_core_hours"
    GPU_HOURS = "gpu_hours"
    MEMORY_PER_NODE = "memory_per_node"
    """The memory that none of its nodes ever used."""
    TIME = "time"
    """The rest of the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its source, or the reason why there is none."""

    name: str
    """A value of `Use` or `Waste`."""
    unit: str
    value: float | None = None
    source: str = "unavailable"
    """A value of `Provenance`."""
    reason: str = ""
    last_error: str = ""
    of: str = ""
    """The node or GPU of a peak, or another remark on the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The use of one node; None was not measured."""

    node: str
    cpu_seconds: float | None = None
    memory_peak: float | None = None
    memory_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The use of one GPU; None was not measured."""

    node: str
    gpu_uuid: str
    utilization_mean: float | None = None
    utilization_peak: float | None = None
    memory_peak: float | None = None
    memory_total: float | None = None
    energy_joules: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoarseSeries:
    """One shown metric over a run, in equal intervals; None if nothing was measured."""

    metric: str
    """A value of `Shown`."""
    unit: str
    begin: float
    """In seconds since 1970."""
    step_s: float
    mean: tuple[float | None, ...]
    """Of the interval, over all nodes or GPUs as the metric is combined."""
    peak: tuple[float | None, ...]
    """The highest of any one node or GPU in the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What it requested from Slurm and got; None: unknown."""

    nodes: int
    tasks: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    """Over all its nodes."""
    time_limit_s: int | None = None

    @property
    def memory_per_node(self) -> float | None:
        """As `--mem` counts it."""
        if self.memory_bytes is None or self.nodes < 1:
            return None
        return self.memory_bytes / self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Identity and outcome of the attempt."""

    allocation: str
    """With the time of its first submit."""
    attempt: int
    cluster: str
    name: str
    user: str
    project: str
    tenant: str
    vcluster: str | None
    partition: str
    state: str
    exit_code: str | None
    submitted: datetime
    started: datetime
    ended: datetime | None
    """None while it runs."""
    wall_s: float
    nodes: str
    command: str = ""
    work_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    format: int = FORMAT
    written: datetime
    run: Run
    asked: Asked
    used: tuple[Figure, ...]
    wasted: tuple[Figure, ...] = ()
    origin: MetricOrigin
    covered: float | None = None
    """The share of its nodes and its time that was measured, 0 to 1; None: unknown."""
    per_node: tuple[NodeUse, ...] = ()
    per_gpu: tuple[GpuUse, ...] = ()
    series: tuple[CoarseSeries, ...] = ()

    def figure(self, name: Use | Waste) -> Figure | None:
        return next((each for each in (*self.used, *self.wasted) if each.name == name), None)

    def value(self, name: Use | Waste) -> float | None:
        """The number of the figure; None if it was not measured."""
        found = self.figure(name)
        return found.value if found is not None else None

    def without_series(self) -> RunSummary:
        return replace(self, series=())


def run_of(attempt: JobAttempt, now: datetime) -> Run:
    """The data of Slurm about an attempt that has started."""
    each, this = attempt.allocation, attempt.attempt
    assert this.started is not None
    until = this.ended or now
    spent_s = (until - this.started).total_seconds() - _suspended_s(each, this)
    return Run(
        allocation=each.ref,
        attempt=this.number,
        cluster=each.cluster,
        name=each.name,
        user=each.user,
        project=each.account,
        tenant=each.tenant,
        vcluster=each.vcluster,
        partition=each.partition,
        state=this.state.value,
        exit_code=str(this.exit_code) if this.exit_code is not None else None,
        submitted=this.submitted,
        started=this.started,
        ended=this.ended,
        wall_s=max(0.0, spent_s),
        nodes=this.nodes,
        command=each.command,
        work_dir=each.work_dir,
    )


def _suspended_s(allocation: Allocation, attempt: Attempt) -> int:
    # Slurm reports it for the newest attempt only.
    return allocation.suspended_s if attempt.number == allocation.attempt else 0


def asked_of(attempt: JobAttempt) -> Asked:
    each = attempt.allocation
    return Asked(
        nodes=attempt.attempt.node_count or each.node_count,
        tasks=each.tasks,
        cpus=each.cpus,
        gpus=each.gpus,
        memory_bytes=each.memory_bytes,
        time_limit_s=each.time_limit_s,
    )


def unit_of(metric: Shown) -> str:
    return SHOWN[metric].unit


def summary_key(attempt: JobAttempt) -> str:
    """Its key in the object store, beside the attempt's logs. Raises `BadKeyPart`."""
    each = attempt.allocation
    first = each.first_submitted or each.submitted
    return key_of(
        each.tenant or _NO_TENANT,
        each.account or _NO_TENANT,
        each.id,
        "report",
        f"{int(first.timestamp())}-{attempt.attempt.number}.json",
    )


def encoded(summary: RunSummary) -> bytes:
    import msgspec  # noqa: PLC0415 - a command that shows a summary does not need it

    return msgspec.json.encode(summary) + b"\n"


def decoded(document: bytes) -> RunSummary:
    """Decode a document. Raises `BadSummary`."""
    import msgspec  # noqa: PLC0415

    try:
        return msgspec.json.decode(document, type=RunSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadSummary(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedUse:
    """The use of one attempt by Slurm. None was not accounted; a zero is a zero of Slurm."""

    cpu_seconds: float | None = None
    largest_task_bytes: float | None = None
    """Resident memory of the largest task. It is a node's only if each node has one task."""
    largest_task_gpu_bytes: float | None = None
    """GPU memory of the task with the most, if Slurm gathers it (`gres/gpumem`)."""
    energy_joules: float | None = None
    """The energy of its nodes, if Slurm measures it."""


class Accounting(Protocol):
    """slurmdbd, as `sacct` queries it: the second source of summaries."""

    async def used(self, attempt: JobAttempt) -> AccountedUse | None:
        """The use of this attempt, or None. Raises `Unavailable`."""
