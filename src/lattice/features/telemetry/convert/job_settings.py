"""The servers' settings for a node's jobs: sampling modes, GPUs and owners.

Owners are sent only if the site lets its nodes write to the metric store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from lattice.domain.telemetry import Mode
from lattice.features.telemetry.convert.batches import is_moment
from lattice.features.telemetry.convert.stamps import Stamps
from lattice.wire.v1 import telemetry_pb2 as pb

_LONGEST_WORD = 256
_MODES = frozenset(mode.value for mode in Mode)


@dataclass(frozen=True, slots=True)
class StampedRun:
    """The owner's labels of one run of a job."""

    started: float
    """By Slurm's data, in seconds since 1970."""
    stamps: Stamps


@dataclass(frozen=True, slots=True)
class NodeJobSettings:
    """The settings of one node's jobs, by job number."""

    modes: Mapping[int, tuple[Mode, float | None]] = field(default_factory=dict)
    """Jobs that do not have the default mode, and when it ends by the servers' clock."""
    usual: Mode = Mode.PROD
    gpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    stamping: bool = False
    """True if nodes may write to the metric store."""
    runs: Mapping[int, StampedRun] = field(default_factory=dict)
    """The current run of each job with series that the node may write."""
    as_of: float = field(default=0.0, compare=False)
    """The time of Slurm's data. A later time alone does not count as a change."""


def settings_message(settings: NodeJobSettings) -> pb.JobsTold:
    message = pb.JobsTold(
        usual=settings.usual.value, stamping=settings.stamping, as_of=settings.as_of
    )
    for job_id, (mode, until) in sorted(settings.modes.items()):
        message.modes.add(job_id=job_id, mode=mode.value, until=until or 0.0)
    for job_id, indices in sorted(settings.gpus.items()):
        message.gpus.add(job_id=job_id, indices=indices)
    for job_id, run in sorted(settings.runs.items()):
        stamps = asdict(run.stamps) | {"attempt": int(run.stamps.attempt)}
        message.stamps.add(job_id=job_id, started=run.started, **stamps)
    return message


def settings_of(message: pb.JobsTold) -> NodeJobSettings:
    """Parse settings. Never raises: an unknown mode is the default, a partial stamp is dropped."""
    modes = {
        each.job_id: (Mode(each.mode), each.until if each.until > 0 else None)
        for each in message.modes
        if each.mode in _MODES and not math.isnan(each.until)
    }
    return NodeJobSettings(
        modes,
        Mode(message.usual) if message.usual in _MODES else Mode.PROD,
        {each.job_id: tuple(each.indices) for each in message.gpus},
        message.stamping,
        _runs_of(message.stamps) if message.stamping else {},
        message.as_of if is_moment(message.as_of) else 0.0,
    )


def _runs_of(messages: Iterable[pb.JobStamps]) -> dict[int, StampedRun]:
    found = {}
    for each in messages:
        stamps = Stamps(
            alloc=each.alloc,
            attempt=str(each.attempt),
            project=each.project,
            tenant=each.tenant,
            user=each.user,
            vcluster=each.vcluster,
        )
        texts = (each.user, each.tenant, each.project, each.vcluster, each.alloc)
        whole = each.job_id and each.attempt and each.alloc and each.user
        if whole and is_moment(each.started) and all(len(text) <= _LONGEST_WORD for text in texts):
            found[each.job_id] = StampedRun(each.started, stamps)
    return found
