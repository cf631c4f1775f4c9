"""From what the metric store answers to the figures of a run. Pure.

A figure over nodes or GPUs is told only if something measured it; what nobody did has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.domain.accounted import AccountedUse
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import SeriesPoints
from lattice.domain.runsummary import Asked, Figure, GpuUse, NodeUse, Use, Waste
from lattice.features.report.service.questions import PART

NOTHING_STORED = "the metric store has nothing of it"
NOT_ACCOUNTED = "Slurm has not measured it"
NO_GPUS = "it had no GPU"
TOO_SHORT = "the run was too short for it"
WHOLE_NODES = "of its whole nodes, which others may have used too"
LARGEST_TASK = "its largest task"
_ORDER = {each.value: place for place, each in enumerate(Provenance)}
_SINCE_BOOT = frozenset({"gpu_energy_joules_total"})
"""Counts from before the run on: only what it grew by is the run's."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the store told nothing."""

    reason: str = NOTHING_STORED
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class _Value:
    value: float
    source: str
    scope: str


_Key = tuple[str, str]
"""A node, and a GPU or nothing."""


class Answer:
    """The parts of the one question, each by node and GPU."""

    def __init__(self, series: Iterable[SeriesPoints]) -> None:
        self._parts: dict[str, dict[_Key, _Value]] = {}
        for each in series:
            if not each.points or not math.isfinite(each.points[-1][1]):
                continue
            labels = each.labels
            part = self._parts.setdefault(labels.get(PART, ""), {})
            key = (labels.get("node", ""), labels.get("gpu_uuid", ""))
            new = _Value(each.points[-1][1], labels.get("source", ""), labels.get("scope", ""))
            old = part.get(key)
            # Where two measured the same, the nearer one counts, and the job's own before a node's.
            if old is None or _rank(new) < _rank(old):
                part[key] = new

    def of(self, part: str) -> Mapping[_Key, _Value]:
        return self._parts.get(part, {})

    def single(self, part: str) -> float | None:
        found = next(iter(self.of(part).values()), None)
        return found.value if found is not None else None

    def grown(self, metric: str) -> dict[_Key, _Value]:
        """By how much a counter grew over the run, of each node or GPU."""
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
        """Those that anything was measured of."""
        return {node for part in self._parts.values() for node, _ in part if node}

    def partly(self, asked: Asked) -> str:
        """Which part of its nodes was measured; empty: all of them, or none."""
        seen = len(self.nodes)
        return f"{seen} of {asked.nodes} nodes" if 0 < seen < asked.nodes else ""


def _rank(value: _Value) -> tuple[int, bool]:
    return _ORDER.get(value.source, len(_ORDER)), value.scope == "node"


def used(answer: Answer, asked: Asked, wall_s: float, why: Missing) -> tuple[Figure, ...]:
    """Every figure of `Use`, in its order."""
    partly = answer.partly(asked)

    def total(name: Use, unit: str, metric: str, why: Missing) -> Figure:
        return _total(name, unit, answer.grown(metric), why, partly)

    cpu = total(Use.CPU_SECONDS, "s", "cpu_seconds_total", why)
    busiest = answer.single("busiest")
    no_gpu = Missing(NO_GPUS) if not asked.gpus else why
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
        _missing(Use.NODE_ENERGY, "J", Missing(NOT_ACCOUNTED)),
        total(Use.IO_READ, "bytes", "io_read_bytes_total", why),
        total(Use.IO_WRITTEN, "bytes", "io_write_bytes_total", why),
        total(Use.NETWORK_SENT, "bytes", "network_tx_bytes_total", why),
        total(Use.NETWORK_RECEIVED, "bytes", "network_rx_bytes_total", why),
        _total(Use.OOM_KILLS, "", answer.of("max memory_oom_kills_total"), why, partly),
    )


def with_accounted(
    figures: tuple[Figure, ...], accounted: AccountedUse, asked: Asked, wall_s: float
) -> tuple[Figure, ...]:
    """The same; what the metric store does not have is as Slurm's accounting says."""
    told = {
        Use.CPU_SECONDS: (accounted.cpu_seconds, ""),
        Use.MEMORY_PEAK: (accounted.largest_task_bytes, LARGEST_TASK),
        Use.NODE_ENERGY: (accounted.energy_joules, ""),
    }
    found = []
    for each in figures:
        value, of = told.get(Use(each.name), (None, ""))
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
    """Of the processors it had, how much it used."""
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
    """What it had and left alone. Where only a part was measured, nobody can say that."""
    by_name = {each.name: each for each in figures}
    cpu, gpu = by_name[Use.CPU_SECONDS], by_name[Use.GPU_UTILIZATION]
    memory = by_name[Use.MEMORY_PEAK]
    asked_bytes = asked.memory_per_node
    left_s = None if asked.time_limit_s is None else max(0.0, asked.time_limit_s - wall_s)
    return (
        _rest(
            Waste.CPU_CORE_HOURS,
            "h",
            cpu,
            None if not asked.cpus else asked.cpus * wall_s / 3600,
            1 / 3600,
            cpu.of,
        ),
        _rest(
            Waste.GPU_HOURS,
            "h",
            gpu,
            None if not asked.gpus else asked.gpus * wall_s / 3600,
            (asked.gpus or 0) * wall_s / 3600 / 100,
            gpu.of,
        ),
        _rest(Waste.MEMORY_PER_NODE, "bytes", memory, asked_bytes, 1.0, partly),
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


def per_node(answer: Answer) -> tuple[NodeUse, ...]:
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


def per_gpu(answer: Answer) -> tuple[GpuUse, ...]:
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
    """How many nodes were measured in each stretch of which anything was."""
    return tuple(value for each in series for _, value in each.points if math.isfinite(value))


def covered(counts: Iterable[float], nodes: int, steps: int) -> float | None:
    """Which share of nodes and time that is."""
    if nodes < 1:
        return None
    return min(1.0, math.fsum(min(each, nodes) for each in counts) / (nodes * steps))


def _number(values: Mapping[_Key, _Value], key: _Key) -> float | None:
    found = values.get(key)
    return found.value if found is not None else None


def _total(
    name: Use, unit: str, values: Mapping[_Key, _Value], why: Missing, partly: str
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


def _mean_of_gpus(values: Mapping[_Key, _Value], asked: Asked, why: Missing) -> Figure:
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


def _highest(name: Use, unit: str, values: Mapping[_Key, _Value], why: Missing) -> Figure:
    if not values:
        return _missing(name, unit, why)
    (node, gpu), most = max(values.items(), key=lambda each: each[1].value)
    of = f"{node} {gpu}".strip()
    return Figure(name=name, unit=unit, value=most.value, source=most.source, of=of)


def _missing(name: Use, unit: str, why: Missing) -> Figure:
    return Figure(name=name, unit=unit, reason=why.reason, last_error=why.last_error)


def _without(figure: Figure, reason: str) -> Figure:
    return Figure(name=figure.name, unit=figure.unit, reason=reason)


def _source(values: Mapping[_Key, _Value]) -> str:
    """The weakest that took part."""
    return max(
        (each.source for each in values.values()), key=lambda each: _ORDER.get(each, len(_ORDER))
    )
