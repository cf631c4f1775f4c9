"""What the steps of a run used, from v0.0.40 on.

The figures of a run are the sums of its steps: slurmdbd keeps none of the run itself. A record has
no peaks before v0.0.40.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.adapters.slurm.schema import Raw, fields
from lattice.domain.runsummary import AccountedUse

_MICROSECONDS = 1_000_000


class _Number(msgspec.Struct):
    set: bool = False
    number: int | float | None = None


class _Seconds(msgspec.Struct):
    seconds: int = 0
    microseconds: int = 0


class _StepTime(msgspec.Struct):
    total: _Seconds = msgspec.field(default_factory=_Seconds)


class _Peak(msgspec.Struct):
    type: str = ""
    name: str = ""
    count: int = 0


class _Used(msgspec.Struct):
    max: list[_Peak] = []


class _StepTres(msgspec.Struct):
    requested: _Used = msgspec.field(default_factory=_Used)


class _Energy(msgspec.Struct):
    consumed: int | _Number | None = None


class _Statistics(msgspec.Struct):
    energy: _Energy = msgspec.field(default_factory=_Energy)


class _Step(msgspec.Struct):
    time: _StepTime = msgspec.field(default_factory=_StepTime)
    tres: _StepTres = msgspec.field(default_factory=_StepTres)
    statistics: _Statistics = msgspec.field(default_factory=_Statistics)


class _RunTime(msgspec.Struct):
    start: int = 0


class _Run(msgspec.Struct):
    job_id: int = 0
    time: _RunTime = msgspec.field(default_factory=_RunTime)
    steps: list[_Step] = []


_RUNS = msgspec.json.Decoder(_Run)


@dataclass(frozen=True, slots=True)
class RunUse:
    """One row of the accounting store: which run, and what its steps used."""

    job_id: int
    started: int
    """Seconds since 1970; 0 if it has not started."""
    used: AccountedUse


def run_use(raw: Raw) -> RunUse | None:
    """One record of slurmdbd's job list, read with its steps."""
    run = fields.record(raw, _RUNS)
    if run is None or run.job_id <= 0:
        return None
    return RunUse(run.job_id, run.time.start, _used(run.steps))


def _used(steps: list[_Step]) -> AccountedUse:
    totals = [each.time.total for each in steps]
    cpu_seconds = sum(each.seconds + each.microseconds / _MICROSECONDS for each in totals)
    # Without a gathering plugin Slurm reports zero.
    return AccountedUse(
        cpu_seconds=cpu_seconds if cpu_seconds > 0 else None,
        largest_task_bytes=_peak(steps, "mem", ""),
        largest_task_gpu_bytes=_peak(steps, "gres", "gpumem"),
        energy_joules=_positive(sum(map(_joules, steps))),
    )


def _peak(steps: Iterable[_Step], kind: str, name: str) -> float | None:
    counts = (
        each.count
        for step in steps
        for each in step.tres.requested.max
        if (each.type, each.name) == (kind, name)
    )
    return _positive(max(counts, default=0))


def _joules(step: _Step) -> float:
    consumed = step.statistics.energy.consumed
    if isinstance(consumed, _Number):
        consumed = int(consumed.number or 0) if consumed.set else 0
    known = fields.count(consumed)
    return float(known or 0)


def _positive(value: float) -> float | None:
    return float(value) if 0 < value < 2**63 else None
