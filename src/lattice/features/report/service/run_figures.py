"""Computes the figures of a run from the metric store's answer. Pure.

A figure without measurements is None and has a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.metric import Provenance
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.runsummary import AccountedUse, Asked, Figure, GpuUse, NodeUse, Use, Waste
from lattice.observe.metric_query import FIGURE
from lattice.observe.shown_series import HEARTBEATS

NOTHING_STORED = "the metric store has nothing of it"
NOT_ACCOUNTED = "Slurm has not measured it"
NO_GPUS = "it had no GPU"
TOO_SHORT = "the run was too short for it"
WHOLE_NODES = "of its whole nodes, which others may have used too"
LARGEST_TASK = "its largest task; newer releases of Slurm count its page cache, too"
LARGEST_GPU_TASK = "its task with the most"
_ORDER = {each.value: rank for rank, each in enumerate(Provenance)}
_SINCE_BOOT = frozenset({"gpu_energy_joules_total"})
"""These counters start before the run: only their increase belongs to it."""


@dataclass(frozen=True, slots=True)
class MissingFigure:
    """Why the store has no value."""

    reason: str = NOTHING_STORED
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class _Value:
    value: float
    source: str
    scope: str


_Key = tuple[str, str]
"""A node, and a GPU or an empty string."""


class StoreAnswer:
    """The parts of the query, each by node and GPU."""

    def __init__(self, series: Iterable[SeriesPoints]) -> None:
        self._parts: dict[str, dict[_Key, _Value]] = {}
        for each in series:
            if not each.points or not math.isfinite(each.points[-1][1]):
                continue
            labels = each.labels
            part = self._parts.setdefault(labels.get(FIGURE, ""), {})
            key = (labels.get("node", ""), labels.get("gpu_uuid", ""))
            new = _Value(each.points[-1][1], labels.get("source", ""), labels.get("scope", ""))
            old = part.get(key)
            # With two measurements, the more direct source counts, and the job's before the node's.
            if old is None or _rank(new) < _rank(old):
                part[key] = new

    def of(self, part: str) -> Mapping[_Key, _Value]:
        return self._parts.get(part, {})

    def single(self, part: str) -> float | None:
        found = next(iter(self.of(part).values()), None)
        return found.value if found is not None else None

    def grown(self, metric: str) -> dict[_Key, _Value]:
        """Return the increase of a counter over the run, for each node or GPU."""
        least, resets = self.of(f"min {metric}"), self.of(f"resets {metric}")
        whole = self.of(f"increase {metric}")
        found = {}
        for key, most in self.of(f"max {metric}").items():
            began_anew = key in resets and resets[key].value > 0
            if began_anew and key in whole:
                value = whole[key].value
            elif metric in _SINCE_BOOT or most.scope == "node":
                value = most.value - (least[key].value if key in least else most.value)
            else:
                value = most.value
            found[key] = _Value(value, most.source, most.scope)
        return found

    @property
    def nodes(self) -> set[str]:
        """The nodes with any measurement."""
        return {node for part in self._parts.values() for node, _ in part if node}

    @property
    def samples(self) -> Mapping[str, float]:
        """The number of samples of each node."""
        found: dict[str, float] = {}
        for part in (self.of(f"count {each}") for each in HEARTBEATS):
            for (node, _), count in part.items():
                found[node] = max(count.value, found.get(node, 0.0))
        return found

    def partly(self, asked: Asked) -> str:
        """Return which part of its nodes was measured; empty for all or none."""
        seen = len(self.nodes)
        return f"{seen} of {asked.nodes} nodes" if 0 < seen < asked.nodes else ""


def _rank(value: _Value) -> tuple[int, bool]:
    return _ORDER.get(value.source, len(_ORDER)), value.scope == "node"


def used(
    answer: StoreAnswer, asked: Asked, wall_s: float, why: MissingFigure
) -> tuple[Figure, ...]:
    """Return every figure of `Use`, in its order."""
    partly = answer.partly(asked)

    def total(name: Use, unit: str, metric: str, why: MissingFigure) -> Figure:
        return _total(name, unit, answer.grown(metric), why, partly)

    cpu = total(Use.CPU_SECONDS, "s", "cpu_seconds_total", why)
    busiest = answer.single("busiest")
    no_gpu = MissingFigure(NO_GPUS) if not asked.gpus else why
    return (
        cpu,
        efficiency(cpu, asked, wall_s),
        Figure(
            name=Use.CPU_PEAK_CORES,
            unit="cores",
            value=busiest,
            source=cpu.source if busiest is not None else Provenance.UNAVAILABLE,
            reason="" if busiest is not None else cpu.reason or TOO_SHORT,
            last_error=cpu.last_error,
        ),
        _highest(Use.MEMORY_PEAK, "bytes", answer.of("max memory_used_bytes"), why),
        _mean_of_gpus(answer.of("avg gpu_utilization_percent"), asked, no_gpu),
        _highest(Use.GPU_MEMORY_PEAK, "bytes", answer.of("max gpu_memory_used_bytes"), no_gpu),
        total(Use.GPU_ENERGY, "J", "gpu_energy_joules_total", no_gpu),
        _missing(Use.NODE_ENERGY, "J", MissingFigure(NOT_ACCOUNTED)),
        total(Use.IO_READ, "bytes", "io_read_bytes_total", why),
        total(Use.IO_WRITTEN, "bytes", "io_write_bytes_total", why),
        total(Use.NETWORK_SENT, "bytes", "network_tx_bytes_total", why),
        total(Use.NETWORK_RECEIVED, "bytes", "network_rx_bytes_total", why),
        _total(Use.OOM_KILLS, "", answer.of("max memory_oom_kills_total"), why, partly),
    )


def with_accounted(
    figures: tuple[Figure, ...], accounted: AccountedUse, asked: Asked, wall_s: float
) -> tuple[Figure, ...]:
    """Fill figures that the metric store lacks from Slurm's accounting."""
    known = {
        Use.CPU_SECONDS: (accounted.cpu_seconds, ""),
        Use.MEMORY_PEAK: (accounted.largest_task_bytes, LARGEST_TASK),
        Use.GPU_MEMORY_PEAK: (accounted.largest_task_gpu_bytes, LARGEST_GPU_TASK),
        Use.NODE_ENERGY: (accounted.energy_joules, ""),
    }
    found = []
    for each in figures:
        value, of = known.get(Use(each.name), (None, ""))
        if each.value is None and value is not None:
            found.append(
                Figure(
                    name=each.name,
                    unit=each.unit,
                    value=value,
                    source=Provenance.SLURM_ACCOUNTING,
                    of=of,
                )
            )
        elif each.name == Use.CPU_EFFICIENCY and each.value is None:
            found.append(efficiency(found[0], asked, wall_s))
        else:
            found.append(each)
    return tuple(found)


def efficiency(cpu: Figure, asked: Asked, wall_s: float) -> Figure:
    """Return the CPU time used, in percent of the CPUs it had."""
    figure = Figure(name=Use.CPU_EFFICIENCY, unit="%", reason=cpu.reason, last_error=cpu.last_error)
    if cpu.value is None:
        return figure
    if not asked.cpus:
        return _without(figure, "Slurm has not said how many CPUs it had")
    if cpu.of:
        return _without(figure, f"only {cpu.of} were measured")
    if wall_s <= 0:
        return _without(figure, TOO_SHORT)
    share = 100 * cpu.value / (asked.cpus * wall_s)
    return Figure(name=Use.CPU_EFFICIENCY, unit="%", value=share, source=cpu.source)


def wasted(
    figures: Sequence[Figure], asked: Asked, wall_s: float, partly: str = ""
) -> tuple[Figure, ...]:
    """Return what it had and did not use. That is unknown if only a part was measured."""
    by_name = {each.name: each for each in figures}
    cpu, gpu = by_name[Use.CPU_SECONDS], by_name[Use.GPU_UTILIZATION]
    memory = by_name[Use.MEMORY_PEAK]
    cpu_hours = asked.cpus * wall_s / 3600 if asked.cpus else None
    gpu_hours = asked.gpus * wall_s / 3600 if asked.gpus else None
    left_s = None if asked.time_limit_s is None else max(0.0, asked.time_limit_s - wall_s)
    return (
        _rest(Waste.CPU_CORE_HOURS, "h", cpu, cpu_hours, 1 / 3600, cpu.of),
        _rest(Waste.GPU_HOURS, "h", gpu, gpu_hours, (gpu_hours or 0) / 100, gpu.of),
        _rest(Waste.MEMORY_PER_NODE, "bytes", memory, asked.memory_per_node, 1.0, partly),
        Figure(
            name=Waste.TIME,
            unit="s",
            value=left_s,
            source=Provenance.UNAVAILABLE if left_s is None else Provenance.SLURM_ACCOUNTING,
            reason="it had no time limit" if left_s is None else "",
        ),
    )


def _rest(
    name: Waste, unit: str, of: Figure, had: float | None, factor: float, partly: str
) -> Figure:
    figure = Figure(name=name, unit=unit, reason=of.reason, last_error=of.last_error)
    if of.value is None:
        return figure
    if of.of == LARGEST_TASK:
        return _without(figure, "only its largest task was measured, not its nodes")
    if partly:
        return _without(figure, f"only {partly} were measured")
    if had is None:
        return _without(figure, "Slurm has not said how much of it it had")
    left = max(0.0, had - of.value * factor)
    return Figure(name=name, unit=unit, value=left, source=of.source)


def per_node(answer: StoreAnswer) -> tuple[NodeUse, ...]:
    cpu, used_most = answer.grown("cpu_seconds_total"), answer.of("max memory_used_bytes")
    limit = answer.of("max memory_limit_bytes")
    return tuple(
        NodeUse(
            node=node,
            cpu_seconds=_number(cpu, (node, "")),
            memory_peak=_number(used_most, (node, "")),
            memory_limit=_number(limit, (node, "")),
        )
        for node in sorted(answer.nodes)
    )


def per_gpu(answer: StoreAnswer) -> tuple[GpuUse, ...]:
    mean, most = answer.of("avg gpu_utilization_percent"), answer.of("max gpu_utilization_percent")
    memory, total = answer.of("max gpu_memory_used_bytes"), answer.of("max gpu_memory_total_bytes")
    energy = answer.grown("gpu_energy_joules_total")
    return tuple(
        GpuUse(
            node=key[0],
            gpu_uuid=key[1],
            utilization_mean=_number(mean, key),
            utilization_peak=_number(most, key),
            memory_peak=_number(memory, key),
            memory_total=_number(total, key),
            energy_joules=_number(energy, key),
        )
        for key in sorted({*mean, *memory, *total, *energy})
    )


def seen(series: Iterable[SeriesPoints]) -> tuple[float, ...]:
    """Return how many nodes were measured in each interval with data."""
    return tuple(value for each in series for _, value in each.points if math.isfinite(value))


def covered(counts: Iterable[float], nodes: int, steps: int) -> float | None:
    """Return the measured share of nodes and time, or None without nodes."""
    if nodes < 1:
        return None
    return min(1.0, math.fsum(min(each, nodes) for each in counts) / (nodes * steps))


def _number(values: Mapping[_Key, _Value], key: _Key) -> float | None:
    found = values.get(key)
    return found.value if found is not None else None


def _total(
    name: Use, unit: str, values: Mapping[_Key, _Value], why: MissingFigure, partly: str
) -> Figure:
    if not values:
        return _missing(name, unit, why)
    whole_nodes = any(each.scope == "node" for each in values.values())
    return Figure(
        name=name,
        unit=unit,
        value=math.fsum(each.value for each in values.values()),
        source=_source(values),
        of=WHOLE_NODES if whole_nodes else partly,
    )


def _mean_of_gpus(values: Mapping[_Key, _Value], asked: Asked, why: MissingFigure) -> Figure:
    if not values:
        return _missing(Use.GPU_UTILIZATION, "%", why)
    mean = math.fsum(each.value for each in values.values()) / len(values)
    whole = asked.gpus is None or len(values) >= asked.gpus
    return Figure(
        name=Use.GPU_UTILIZATION,
        unit="%",
        value=mean,
        source=_source(values),
        of="" if whole else f"{len(values)} of {asked.gpus} GPUs",
    )


def _highest(name: Use, unit: str, values: Mapping[_Key, _Value], why: MissingFigure) -> Figure:
    if not values:
        return _missing(name, unit, why)
    (node, gpu), most = max(values.items(), key=lambda each: each[1].value)
    of = f"{node} {gpu}".strip()
    return Figure(name=name, unit=unit, value=most.value, source=most.source, of=of)


def _missing(name: Use, unit: str, why: MissingFigure) -> Figure:
    return Figure(name=name, unit=unit, reason=why.reason, last_error=why.last_error)


def _without(figure: Figure, reason: str) -> Figure:
    return Figure(name=figure.name, unit=figure.unit, reason=reason)


def _source(values: Mapping[_Key, _Value]) -> str:
    """Return the weakest source that took part."""
    return max(
        (each.source for each in values.values()), key=lambda each: _ORDER.get(each, len(_ORDER))
    )
