"""Requested and granted properties of runs, side by side. Pure.

An unknown value is None with a reason, and does not count as different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lattice.base.moment import duration
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodeset import NodeSet
from lattice.domain.runsummary import asked_of
from lattice.features.compare.model import Setting, SettingValue

_GIB = 2**30
UNSAID = "Slurm does not say"
NO_IMAGE = "Slurm was given no --container, and is not told what a script starts by itself"
NO_ENVIRONMENT = "a job's variables are not read: they may hold secrets"
NOT_OVER = "it has not ended"


@dataclass(frozen=True, slots=True)
class _Known:
    """One setting: how to read it, and why it is missing."""

    name: str
    read: Callable[[JobAttempt], str | None]
    lacking: Callable[[JobAttempt], str] = lambda _: UNSAID


def settings_of(jobs: Sequence[JobAttempt]) -> tuple[Setting, ...]:
    """Return every setting, equal or not, in display order."""
    return tuple(_setting(each, jobs) for each in _SETTINGS)


def _setting(known: _Known, jobs: Sequence[JobAttempt]) -> Setting:
    values = tuple(_value(known, each) for each in jobs)
    found = {each.value for each in values if each.value is not None}
    return Setting(name=known.name, values=values, differs=len(found) > 1)


def _value(known: _Known, job: JobAttempt) -> SettingValue:
    value = known.read(job) or None
    return SettingValue(value=value, reason=known.lacking(job) if value is None else "")


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)


def _size(size: float | None) -> str | None:
    return None if size is None else f"{size / _GIB:.4g} GiB"


def _limit(job: JobAttempt) -> str | None:
    limit_s = job.allocation.time_limit_s
    return None if limit_s is None else duration(limit_s)


def _nodes(job: JobAttempt) -> str:
    """Return the nodes in a canonical order, so that equal sets have equal text."""
    try:
        return str(NodeSet.parse(job.attempt.nodes))
    except ValueError:
        return job.attempt.nodes


def _no_exit(job: JobAttempt) -> str:
    return NOT_OVER if job.attempt.ended is None else UNSAID


_SETTINGS = (
    _Known("name", lambda each: each.allocation.name),
    _Known("command", lambda each: each.allocation.command),
    _Known("work_dir", lambda each: each.allocation.work_dir),
    _Known("user", lambda each: each.allocation.user),
    _Known("account", lambda each: each.allocation.account),
    _Known("partition", lambda each: each.allocation.partition),
    _Known("qos", lambda each: each.allocation.qos),
    _Known("vcluster", lambda each: each.allocation.vcluster),
    _Known("nodes", _nodes),
    _Known("node_count", lambda each: _text(each.attempt.node_count or None)),
    _Known("tasks", lambda each: _text(each.allocation.tasks)),
    _Known("cpus", lambda each: _text(each.allocation.cpus)),
    _Known("gpus", lambda each: _text(each.allocation.gpus)),
    _Known("memory", lambda each: _size(each.allocation.memory_bytes)),
    _Known("memory_per_node", lambda each: _size(asked_of(each).memory_per_node)),
    _Known("time_limit", _limit),
    _Known("image", lambda each: each.allocation.container, lambda _: NO_IMAGE),
    _Known("environment", lambda _: None, lambda _: NO_ENVIRONMENT),
    _Known("state", lambda each: each.attempt.state.value),
    _Known("exit_code", lambda each: _text(each.attempt.exit_code), _no_exit),
)
