"""A job as one node sees it: steps, tasks and processes, and their changes. Pure.

A node has no attempts. It has a control group with an inode that appeared at a time. That is a
job's identity on the node, and a restart of the agent does not change it. The server finds the
attempt by the time (`match_attempt`), because Slurm's restart count is ahead while the attempt
before is still COMPLETING.

One attempt can have more than one identity on a node. Without an extern step, the group disappears
with the last step. It comes back, with another inode, with the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lattice.domain.allocation import Attempt

CLOCK_SLACK_S = 2.0
"""How far a node's clock may be from the controller's; more raises its own alert."""
UNREADABLE = "processes of this job can't be read: the kernel holds whoever reads them"


class StartSign(StrEnum):
    """How the start of a job on this node was found."""

    FOLDER = "folder"
    """The creation time of its control group; the same after every restart of the agent."""
    PROCESS = "process"
    """Its oldest process: the kernel no longer had the creation time of the folder."""
    SEEN = "seen"
    """It had ended before it could be read: the time of the notice."""


@dataclass(frozen=True, slots=True, order=True)
class JobIdentity:
    """One life of a job on one node. `inode` is 0 for a job that ended before it was read."""

    boot_id: str
    job_id: int
    inode: int
    started: float
    """Wall time of the node, in seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.job_id}@{self.started:.3f}/{self.inode}/{self.boot_id}"


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process, distinct from a later one with the same pid."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks between the boot and its start."""


@dataclass(frozen=True, slots=True)
class StepId:
    """`batch`, `extern`, `interactive` or a number; a part of a het step also has an offset."""

    name: str
    het_offset: int | None = None

    @property
    def number(self) -> int | None:
        """None for the steps that srun did not start."""
        return int(self.name) if self.name.isdigit() else None

    @property
    def order(self) -> tuple[int, str, int]:
        """The order in which people list steps: named ones, then numbers, then parts."""
        number = self.number
        return (-1 if number is None else number, self.name, self.het_offset or 0)

    def __str__(self) -> str:
        return self.name if self.het_offset is None else f"{self.name}+{self.het_offset}"


@dataclass(frozen=True, slots=True)
class NodeTask:
    """One task of a step that runs here. Without processes it has ended or is about to begin."""

    id: int
    """Its number in the whole step, over all nodes."""
    processes: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStep:
    """One step on this node. `processes` are all of its owner's, of any task."""

    id: StepId
    tasks: tuple[NodeTask, ...] = ()
    processes: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A control group of the job. `hierarchy` is "" for the one of cgroup v2."""

    hierarchy: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """One job on this node, as last read. `None` means unknown."""

    identity: JobIdentity
    started_by: StartSign
    uid: int | None = None
    """A hint on cgroup v2, where it comes from the processes: Slurm's own value has priority."""
    sluid: str | None = None
    """Slurm's unique id, from the folder's name (26.05 and newer)."""
    steps: tuple[NodeStep, ...] = ()
    daemons: tuple[ProcessId, ...] = ()
    """Slurm's own processes for it (slurmstepd)."""
    folders: tuple[JobFolder, ...] = ()
    unread: tuple[int, ...] = ()
    """Processes that block their readers in the kernel; new ones are listed nowhere else here."""

    @property
    def id(self) -> int:
        return self.identity.job_id

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """Every process of the owner (and of the extern step), each once."""
        return tuple(sorted({each for step in self.steps for each in step.processes}))


@dataclass(frozen=True, slots=True)
class JobAppeared:
    """A job is new on the node, or new to a listener."""

    job: NodeJob


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Its steps, tasks, processes or owner have changed."""

    job: NodeJob
    before: NodeJob


@dataclass(frozen=True, slots=True)
class NodeJobEnded:
    """Slurm has removed it; `job` is its last reading."""

    job: NodeJob


@dataclass(frozen=True, slots=True)
class WatchPause:
    """A period in which jobs can have come and gone unseen, in the node's wall time."""

    since: float
    until: float

    def with_(self, other: WatchPause) -> WatchPause:
        """The period that covers both."""
        return WatchPause(min(self.since, other.since), max(self.until, other.until))

    def meets(self, began: float, ended: float | None) -> bool:
        """True if a part of this time was not watched."""
        return self.since <= (self.until if ended is None else ended) and began <= self.until


JobEvent: TypeAlias = JobAppeared | JobChanged | NodeJobEnded
Picture: TypeAlias = Mapping[JobIdentity, NodeJob]


def compare(before: Picture, after: Picture) -> tuple[JobEvent, ...]:
    """What changed between two pictures: ends first, so that a requeued id is never there twice.

    Law: the events, applied to `before`, give `after`.
    """
    ended = [NodeJobEnded(before[each]) for each in sorted(before.keys() - after.keys())]
    appeared = [JobAppeared(after[each]) for each in sorted(after.keys() - before.keys())]
    changed = [
        JobChanged(after[each], before[each])
        for each in sorted(before.keys() & after.keys())
        if before[each] != after[each]
    ]
    return (*ended, *appeared, *changed)


def match_attempt(
    attempts: Iterable[Attempt], started: float, *, slack_s: float = CLOCK_SLACK_S
) -> Attempt | None:
    """The attempt that was running when a group appeared on a node, if any.

    The group appears after the start that Slurm recorded (the prolog may take minutes) and before
    the end, within the slack of the clocks. If two attempts fit, the nearer start is likelier:
    without a long prolog a group follows within a second.
    """
    moment = datetime.fromtimestamp(started, UTC)
    slack = timedelta(seconds=slack_s)
    possible = [
        (abs(moment - attempt.started), -attempt.number, attempt)
        for attempt in attempts
        if attempt.started is not None
        and attempt.started <= moment + slack
        and (attempt.ended is None or moment - slack <= attempt.ended)
    ]
    return min(possible, key=lambda each: each[:2])[2] if possible else None
