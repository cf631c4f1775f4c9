"""Advice for the next run: one small rule each, over a run's summary. Pure.

A rule returns advice with the numbers behind it and the option of `sbatch`, or None. A rule returns
None if a number was not measured. Rules based on measurements are skipped for a run with too little
data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lattice.base.moment import duration
from lattice.domain.allocation import State
from lattice.domain.runsummary import RunSummary, Use
from lattice.features.report.model import LEAST_COVERED, SHORTEST_ADVISED_S, Advice
from lattice.features.report.service.run_figures import LARGEST_TASK

Rule = Callable[[RunSummary], Advice | None]

_GIB, _MIB = 2**30, 2**20
_MEMORY_MARGIN = 1.2
_CPU_MARGIN = 1.1
_TIME_MARGIN = 1.25
_MORE = 1.5
_IDLE_GPU_PERCENT = 1.0
_LOW_GPU_PERCENT = 30.0
_IDLE_CORES = 0.01
_LEAST_TIME_S = 1800


def advise(summary: RunSummary) -> tuple[tuple[Advice, ...], str]:
    """Return the advice, and why none of it is based on measurements, if so."""
    if summary.run.ended is None:
        return (), "it still runs: what it will need in the end is not known yet"
    why = _too_little(summary)
    rules = _BY_SLURM if why else (*_BY_SLURM, *_BY_MEASURE)
    return tuple(found for rule in rules if (found := rule(summary)) is not None), why


def _too_little(summary: RunSummary) -> str:
    if summary.run.wall_s < SHORTEST_ADVISED_S:
        least = duration(SHORTEST_ADVISED_S)
        return f"it ran for {duration(summary.run.wall_s)}; less than {least} says too little"
    if summary.covered is None:
        return "nothing was measured on its nodes"
    if summary.covered < LEAST_COVERED:
        return (
            f"{_percent(100 * summary.covered)} of its nodes and time were measured; "
            f"it takes {_percent(100 * LEAST_COVERED)}"
        )
    return ""


def ended_at_its_limit(summary: RunSummary) -> Advice | None:
    limit_s = summary.asked.time_limit_s
    if summary.run.state != State.TIMEOUT or not limit_s:
        return None
    more_s = _round_time(limit_s * _MORE)
    return Advice(
        rule="ended_at_its_limit",
        words=f"Slurm ended it at its time limit of {duration(limit_s)}. Half as much again is "
        f"{duration(more_s)}; a job that writes checkpoints can go on in a second one instead.",
        flag=f"--time={duration(more_s)}",
    )


def time_too_long(summary: RunSummary) -> Advice | None:
    limit_s, wall_s = summary.asked.time_limit_s, summary.run.wall_s
    if summary.run.state != State.COMPLETED or not limit_s or limit_s < _LEAST_TIME_S:
        return None
    enough_s = _round_time(max(wall_s * _TIME_MARGIN, 600.0))
    if wall_s > 0.5 * limit_s or enough_s >= limit_s:
        return None
    return Advice(
        rule="time_too_long",
        words=f"It took {duration(wall_s)} of {duration(limit_s)} "
        f"({_percent(100 * wall_s / limit_s)}). Shorter jobs start sooner; "
        f"{duration(enough_s)} leaves a quarter to spare.",
        flag=f"--time={duration(enough_s)}",
    )


def out_of_memory(summary: RunSummary) -> Advice | None:
    had = summary.asked.memory_per_node
    kills = summary.value(Use.OOM_KILLS) or 0
    if had is None or not (kills or summary.run.state == State.OUT_OF_MEMORY):
        return None
    cause = f"{kills:.0f} of its processes were killed" if kills else "Slurm says it was killed"
    return Advice(
        rule="out_of_memory",
        words=f"{cause} for want of memory: it had {_size(had)} a node. "
        f"Half as much again is {_memory_flag(had * _MORE)}.",
        flag=f"--mem={_memory_flag(had * _MORE)}",
    )


def memory_too_much(summary: RunSummary) -> Advice | None:
    found = _memory_use(summary)
    if found is None:
        return None
    had, peak, node = found
    enough = _enough_memory(peak)
    if had < 2 * peak or had - enough < _GIB:
        return None
    return Advice(
        rule="memory_too_much",
        words=f"It had {_size(had)} a node and used {_size(peak)} at most, on {node} "
        f"({_percent(100 * peak / had)}). {_memory_flag(enough)} leaves a fifth to spare.",
        flag=f"--mem={_memory_flag(enough)}",
    )


def memory_tight(summary: RunSummary) -> Advice | None:
    found = _memory_use(summary)
    if found is None:
        return None
    had, peak, node = found
    if peak < 0.95 * had:
        return None
    enough = _enough_memory(peak)
    return Advice(
        rule="memory_tight",
        words=f"It used {_size(peak)} of the {_size(had)} it had on {node} "
        f"({_percent(100 * peak / had)}). {_memory_flag(enough)} leaves a fifth to spare.",
        flag=f"--mem={_memory_flag(enough)}",
    )


def _memory_use(summary: RunSummary) -> tuple[float, float, str] | None:
    """Return what a node had, the highest use and its node; None if that is no basis for advice."""
    had, figure = summary.asked.memory_per_node, summary.figure(Use.MEMORY_PEAK)
    if had is None or figure is None or figure.value is None or figure.of == LARGEST_TASK:
        return None
    if summary.value(Use.OOM_KILLS) or summary.run.state == State.OUT_OF_MEMORY:
        return None
    return had, figure.value, figure.of


def gpus_idle(summary: RunSummary) -> Advice | None:
    cards = summary.per_gpu
    measured = [each for each in cards if each.utilization_peak is not None]
    if not summary.asked.gpus or len(measured) < summary.asked.gpus:
        return None
    idle = [each for each in measured if (each.utilization_peak or 0.0) < _IDLE_GPU_PERCENT]
    if not idle:
        return None
    left = len(measured) - len(idle)
    names = ", ".join(f"{each.node} {each.gpu_uuid}" for each in idle[:2])
    more = f" and {len(idle) - 2} more" if len(idle) > 2 else ""
    return Advice(
        rule="gpus_idle",
        words=f"{len(idle)} of {len(measured)} GPUs never ran anything ({names}{more}: below "
        f"{_IDLE_GPU_PERCENT:g} % all the time). "
        + ("Ask for those that are used." if left else "Leave --gpus and --gres out."),
        flag=f"--gpus={left}" if left else "",
    )


def gpus_low(summary: RunSummary) -> Advice | None:
    figure = summary.figure(Use.GPU_UTILIZATION)
    if figure is None or figure.value is None or figure.of or not summary.asked.gpus:
        return None
    peaks = [each.utilization_peak for each in summary.per_gpu]
    if not any(each is not None and each >= _IDLE_GPU_PERCENT for each in peaks):
        return None
    if figure.value >= _LOW_GPU_PERCENT:
        return None
    cpu = summary.value(Use.CPU_EFFICIENCY)
    busy = (
        f" Its CPUs were {_percent(cpu)} busy: they may be what the GPUs waited for."
        if cpu is not None and cpu > 90
        else ""
    )
    return Advice(
        rule="gpus_low",
        words=f"Its {summary.asked.gpus} GPUs ran something {_percent(figure.value)} of the time, "
        f"on average.{busy} `lattice top` shows when.",
    )


def cpus_idle(summary: RunSummary) -> Advice | None:
    asked, peak = summary.asked, summary.value(Use.CPU_PEAK_CORES)
    share = summary.value(Use.CPU_EFFICIENCY)
    if not asked.cpus or peak is None or share is None or share >= 50:
        return None
    enough = max(1, math.ceil(peak * _CPU_MARGIN))
    if enough > asked.cpus / 2 or asked.cpus - enough < 1:
        return None
    tasks = asked.tasks or 1
    if asked.cpus > tasks:
        each = max(1, math.ceil(enough / tasks))
        if each * tasks >= asked.cpus:
            return None
        flag = f"--cpus-per-task={each}"
    else:
        flag = f"--ntasks={enough}"
    mean = share * asked.cpus / 100
    return Advice(
        rule="cpus_idle",
        words=f"Of {asked.cpus} CPUs it kept {mean:.1f} busy on average ({_percent(share)}) and "
        f"{peak:.1f} at its busiest. A tenth to spare makes {enough}.",
        flag=flag,
    )


def nodes_idle(summary: RunSummary) -> Advice | None:
    nodes = summary.per_node
    measured = [each for each in nodes if each.cpu_seconds is not None]
    if summary.asked.nodes < 2 or len(measured) < summary.asked.nodes:
        return None
    least_s = _IDLE_CORES * summary.run.wall_s
    idle = [each for each in measured if (each.cpu_seconds or 0.0) < least_s]
    left = len(measured) - len(idle)
    if not idle or not left:
        return None
    names = ", ".join(each.node for each in idle[:3]) + ("…" if len(idle) > 3 else "")
    return Advice(
        rule="nodes_idle",
        words=f"{len(idle)} of {len(measured)} nodes did nothing ({names}: below "
        f"{_percent(100 * _IDLE_CORES)} of a core).",
        flag=f"--nodes={left}",
    )


_BY_SLURM: tuple[Rule, ...] = (ended_at_its_limit, out_of_memory, time_too_long)
"""They use Slurm's data, which needs no measurements."""
_BY_MEASURE: tuple[Rule, ...] = (
    gpus_idle,
    nodes_idle,
    memory_tight,
    memory_too_much,
    cpus_idle,
    gpus_low,
)


def _enough_memory(peak: float) -> float:
    return max(peak * _MEMORY_MARGIN, 256 * _MIB)


def _memory_flag(size_bytes: float) -> str:
    """Format for `--mem`, rounded up: whole gigabytes from two on."""
    if size_bytes > 2 * _GIB:
        return f"{math.ceil(size_bytes / _GIB)}G"
    return f"{math.ceil(size_bytes / (64 * _MIB)) * 64}M"


def _size(size_bytes: float) -> str:
    if size_bytes >= _GIB:
        return f"{size_bytes / _GIB:.1f} GiB"
    return f"{size_bytes / _MIB:.0f} MiB"


def _percent(value: float) -> str:
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"


def _round_time(seconds: float) -> int:
    """Round up to five minutes, or to a quarter of an hour from one hour on."""
    step_s = 900 if seconds >= 3600 else 300
    return math.ceil(seconds / step_s) * step_s
