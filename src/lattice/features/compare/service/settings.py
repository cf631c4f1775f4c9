"""What runs asked for and were given, side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lattice.base.moment import duration
from lattice.domain.attempts import JobAttempt
from lattice.domain.nodeset import NodeSet
from lattice.features.compare.model import Setting, SettingValue

_GIB = 2**30


def settings_of(jobs: Sequence[JobAttempt]) -> tuple[Setting, ...]:
    """Every setting, alike or not, in the order people look for them."""
    return tuple(_setting(name, [read(each) or None for each in jobs]) for name, read in _SETTINGS)


def _setting(name: str, values: Sequence[str | None]) -> Setting:
    # What nobody has said of one is not known to differ.
    told = {each for each in values if each is not None}
    return Setting(
        name=name,
        values=tuple(SettingValue(value=each) for each in values),
        differs=len(told) > 1,
    )


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _memory(job: JobAttempt) -> str | None:
    size = job.allocation.memory_bytes
    return None if size is None else f"{size / _GIB:.4g} GiB"


def _limit(job: JobAttempt) -> str | None:
    limit_s = job.allocation.time_limit_s
    return None if limit_s is None else duration(limit_s)


def _nodes(job: JobAttempt) -> str:
    """In one order, so that the same nodes are the same text."""
    try:
        return str(NodeSet.parse(job.attempt.nodes))
    except ValueError:
        return job.attempt.nodes


def _exit(job: JobAttempt) -> str | None:
    code = job.attempt.exit_code
    return None if code is None else str(code)


_SETTINGS: tuple[tuple[str, Callable[[JobAttempt], str | None]], ...] = (
    ("name", lambda each: each.allocation.name),
    ("command", lambda each: each.allocation.command),
    ("work_dir", lambda each: each.allocation.work_dir),
    ("user", lambda each: each.allocation.user),
    ("account", lambda each: each.allocation.account),
    ("partition", lambda each: each.allocation.partition),
    ("qos", lambda each: each.allocation.qos),
    ("vcluster", lambda each: each.allocation.vcluster),
    ("nodes", _nodes),
    ("node_count", lambda each: _number(each.attempt.node_count or None)),
    ("tasks", lambda each: _number(each.allocation.tasks)),
    ("cpus", lambda each: _number(each.allocation.cpus)),
    ("gpus", lambda each: _number(each.allocation.gpus)),
    ("memory", _memory),
    ("time_limit", _limit),
    ("image", lambda _: None),
    ("state", lambda each: each.attempt.state.value),
    ("exit_code", _exit),
)
"""Slurm tells of no environment image; the word stands for it until somebody does."""
